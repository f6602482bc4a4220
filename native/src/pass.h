// A whole pass of a decoder-only model over trees of tokens: Llama and the families like it, Gemma 4, and GPT-NeoX.
#pragma once
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "attention.h"
#include "candidates.h"
#include "multiply.h"
#include "team.h"

namespace drafttree {

constexpr int64_t NONE = -1;
constexpr int64_t EVERYTHING = std::numeric_limits<int64_t>::max() / 2;

enum class Activation { silu, gelu, gelu_tanh, relu };

INLINE Floats activate(Activation kind, Floats x) {
  switch (kind) {
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::gelu:
      return .5f * x * (1.f + error_function(x * .70710678f));
    case Activation::gelu_tanh:
      return x * sigmoid(1.5957691f * fused(splat(.044715f), x * x * x, x));
    default:
      return larger(x, Floats{});
  }
}

// An RMS norm, or a layer norm where `centred`; nothing where there is no scale.
struct Norm {
  std::vector<float> scale, shift;
  float epsilon = 0;
  bool centred = false;

  explicit operator bool() const { return !scale.empty(); }
  void apply(const float* x, float* out) const {
    const int64_t width = scale.size();
    float mean = 0;
    if (centred) mean = total(x, width, [](Floats number) { return number; }) / width;
    const float square = total(
        x, width, [mean](Floats number) { return (number - mean) * (number - mean); },
        [mean](float number) { return (number - mean) * (number - mean); });
    const float by = 1 / std::sqrt(square / width + epsilon);
    for (int64_t i = 0; i < width; i++) out[i] = (x[i] - mean) * by * scale[i] + shift[i];
  }

 private:
  // Sums in lanes, in order; the last numbers, fewer than lanes, one by one.
  template <class Of, class OfOne>
  static float total(const float* x, int64_t width, Of of, OfOne of_one) {
    Floats all{};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) all += of(load(x + i));
    float rest = sum(all);
    for (; i < width; i++) rest += of_one(x[i]);
    return rest;
  }
  template <class Of>
  static float total(const float* x, int64_t width, Of of) {
    return total(x, width, of, [](float number) { return number; });
  }
};

// A rotary embedding. Cosines and sines are computed in every pass, for the positions of its nodes: of all positions of
// a long context they would take more memory than a small model.
struct Rotary {
  std::vector<float> frequencies;  // of the rotated pairs
  float scaling = 1;

  int64_t pairs() const { return frequencies.size(); }
  // The cosines of a position, then its sines.
  void angles(int64_t position, float* to) const {
    for (int64_t i = 0; i < pairs(); i++) {
      const float angle = position * frequencies[i];
      to[i] = std::cos(angle) * scaling, to[pairs() + i] = std::sin(angle) * scaling;
    }
  }
  // Turns the pairs (i, i + pairs) of a head by such angles.
  void turn(float* head, const float* angles) const {
    const int64_t pairs = this->pairs();
    const float *cosine = angles, *sine = angles + pairs;
    for (int64_t i = 0; i < pairs; i++) {
      const float a = head[i], b = head[i + pairs];
      head[i] = a * cosine[i] - b * sine[i], head[i + pairs] = b * cosine[i] + a * sine[i];
    }
  }
};

// A table of embeddings `[vocabulary][width]`: read where it lies in the module, in its blocks perhaps, or out of an
// output projection of the same weight.
struct Embedding {
  const char* table = nullptr;
  std::shared_ptr<const Panels> panels;  // in place of a table
  Format format = Format::float32;       // that the module has them in; int8 weights are embeddings of another one
  int64_t vocabulary = 0, width = 0;
  float scale = 1;
  Format blocks = Format::float32;  // of the table, where it is in blocks

  void read(int64_t token, float* to) const {
    if (panels) panels->read(token, to);
    else if (has_groups(blocks)) visit_blocks(blocks, [&](auto block) { read_blocks<decltype(block)>(token, to); });
    for (int64_t i = 0; i < width; i++) {
      if (!panels && !has_groups(blocks)) to[i] = at(token, i);
      else to[i] = scale * (format == Format::float32 ? to[i] : widened(rounded(to[i])));
    }
  }
  template <class Block>
  void read_blocks(int64_t token, float* to) const {
    const auto* row = (const uint8_t*)table + token * Panels::row_bytes(blocks, width);
    for (int64_t group = 0; group < width / GROUP; group++)
      Block::Layout::values(Block::read(row + group / Block::GROUPS * Block::BYTES, group % Block::GROUPS),
                            to + group * GROUP);
  }
  float at(int64_t token, int64_t i) const {
    const int64_t place = token * width + i;
    if (format == Format::float32) return scale * ((const float*)table)[place];
    return scale * widened(((const uint16_t*)table)[place]);
  }
};

struct Expert {
  Panels gate, up, down;
};

struct Layer {
  std::vector<Panels> qkv;      // query heads, key heads, value heads; in parts where these have several formats
  Panels out, gate, up, down;   // no gate in an MLP without one
  Panels router;                    // of a mixture of experts, beside an MLP or in its place: a score of each
  std::vector<Expert> experts;
  std::vector<float> expert_scales;  // of what each gives; none for 1
  int64_t chosen = 0;                // experts of a token
  bool rescaled = false;             // whether what they count for adds up to 1
  Norm before_router, before_experts;
  Norm after_inner, after_experts;  // of what an MLP and the experts beside it give, before both are added
  Norm before_attention, after_attention, before_mlp, after_mlp, query, key, value;
  int64_t key_heads = 0, groups = 0, width = 0, window = EVERYTHING;
  // What is projected of each key head: its key and its value, 2; a key that is the value too before norm and rotation,
  // 1; nothing where both are those of a layer before, 0.
  int64_t projected = 2;
  int64_t buffer = 0, key_slot = 0, value_slot = 0;  // where the keys and values that it attends to are in a cache
  int64_t rotary = NONE;            // none where keys and queries are not turned (NoPE)
  int64_t long_rotary = NONE;       // in texts with the long frequencies of LongRoPE; none where there are no others
  float scale = 1, multiplier = 1;  // of scores; of what is added to the residual stream
  float scalar = 1;                 // of the residual stream behind the layer
  bool parallel = false;            // attention and MLP read the same states
  Panels input_gate, input_projection;  // of what it reads beside the residual stream, where there is anything
  Norm after_inputs;
  Activation activation = Activation::silu;

  int64_t qkv_outputs() const {
    int64_t all = 0;
    for (const Panels& part : qkv) all += part.outputs;
    return all;
  }
  int64_t qkv_room() const {  // numbers, in whole panels
    int64_t all = 0;
    for (const Panels& part : qkv) all += part.count * PANEL;
    return all;
  }
  int64_t query_heads() const { return key_heads * groups; }
  int64_t heads() const { return query_heads() + (projected ? 2 * key_heads : 0); }
};

// What each layer reads of a token beside the residual stream (Gemma 4): its own part of a row of embeddings, and of a
// projection of what the residual stream begins with.
struct LayerInputs {
  Embedding embedding;  // of all layers, behind each other
  Panels projection;
  Norm norm;  // of a layer's part of the projection
  float projection_scale = 1, sum_scale = 1;

  int64_t width() const { return norm.scale.size(); }  // of a layer's part
};

// How a draft head begins, which reads a token beside a state of the target or of its own: the two side by side, each
// normed, are projected to the residual stream (EAGLE, MTP), or the first layer's attention reads them, and what is
// added to begins with the state (EAGLE-3).
struct Entry {
  Norm token, state;
  bool states_first = false, residual_normed = false;
  Panels projection;  // none where attention reads the pair
};

// The keys and values of one shape in a text's cache: [slots][key heads][rows][width].
struct CacheRows {
  char* data;
  int64_t slot_bytes, head_bytes;
};

// One text of a pass.
struct Text {
  const int64_t *tokens, *positions;
  const bool* visible;     // [nodes][drafted], the last `nodes` of them the tokens themselves
  int64_t nodes, drafted;  // drafted rows, those of this pass included
  int64_t length, first_position;    // committed rows, and the position of the first row
  bool long_rope;                    // whether the long frequencies of LongRoPE hold
  int64_t wanted_first, wanted_end;  // nodes whose logits are wanted
  std::vector<CacheRows> buffers;    // of its cache
};

// Texts that the best token is appended to, and then the best below that: no row is drafted in their caches yet.
struct Chains {
  std::vector<Text> texts;  // of a node each, whose logits are wanted
  const float* states;      // [texts][hidden] that draft heads read
  int64_t output;           // the layer whose states the next pass of a draft head reads
  int64_t count, allowed;   // tokens of a chain; columns of logits that they are of
  const int64_t* ids;       // of these columns; null where they are the columns
  int64_t* tokens;          // [count][texts] what is found
  float* logprobs;          // [count][texts]
};

// What a pass gives. Rows of logits have room for whole panels; states are those that go into a layer, the last norm's
// where the layer is behind the last, and those that go into that norm for `BEFORE_NORM`.
struct Results {
  float* logits;
  int64_t stride;
  std::vector<std::pair<int64_t, float*>> states;  // by layer
};
constexpr int64_t BEFORE_NORM = -1;

class Model {
 public:
  int64_t hidden = 0;
  float logits_divisor = 1, logits_cap = 0;  // logits stay between the cap and its negative; 0 for none
  Format cached = Format::float32;           // of keys and values
  Embedding embedding;
  std::vector<Layer> layers;
  std::vector<Rotary> rotaries;
  Norm norm;
  std::shared_ptr<const Panels> head;  // of a draft head often the target's
  bool borrows_head = false;
  std::unique_ptr<Entry> entry;  // of a draft head
  std::unique_ptr<LayerInputs> layer_inputs;

  size_t bytes() const {
    size_t all = (borrows_head ? 0 : head->bytes()) + (entry ? entry->projection.bytes() : 0);
    if (layer_inputs) all += layer_inputs->projection.bytes();
    for (const Layer& each : layers) {
      for (const Panels& part : each.qkv) all += part.bytes();
      for (const Panels* part : {&each.out, &each.gate, &each.up, &each.down, &each.router, &each.input_gate,
                                 &each.input_projection})
        all += part->bytes();
      for (const Expert& own : each.experts) all += own.gate.bytes() + own.up.bytes() + own.down.bytes();
    }
    return all;
  }

  // Runs a pass on so many threads; each text's new rows join its cache. A draft head reads states
  // `[nodes of all texts][hidden]`.
  void forward(int threads, const std::vector<Text>& texts, const float* states, const Results& results) {
    Team::run(
        threads, [&] { prepare(threads, texts); },
        [&](Team& team, int thread) { run(team, thread, texts, states, results); });
  }

  // Drafts chains, a pass per token. The rows of all their nodes join the caches.
  void draft(int threads, const Chains& chains) {
    std::vector<Text> texts = chains.texts;
    const int64_t count = texts.size();
    const std::unique_ptr<bool[]> seen(new bool[chains.count]);
    std::fill_n(seen.get(), chains.count, true);
    std::vector<int64_t> positions(count), columns(count);
    const int64_t room = head->count * PANEL;
    // of this call: passes of others may come between those of a chain
    Buffer logits, outputs;
    Results results{logits.reserve<float>(count * room), room, {}};
    if (entry) results.states.push_back({chains.output, outputs.reserve<float>(count * hidden)});
    for (int64_t step = 0; step < chains.count; step++) {
      int64_t* found = chains.tokens + step * count;
      for (int64_t t = 0; t < count; t++) {
        positions[t] = chains.texts[t].positions[0] + step;
        texts[t].positions = &positions[t], texts[t].visible = seen.get(), texts[t].drafted = step + 1;
        if (step) texts[t].tokens = found - count + t;
      }
      forward(threads, texts, step ? outputs.as<float>() : chains.states, results);
      Candidates{results.logits, room, head->outputs, chains.allowed, 1, chains.logprobs + step * count, columns.data()}
          .find_all(threads, count);
      for (int64_t t = 0; t < count; t++) found[t] = chains.ids ? chains.ids[columns[t]] : columns[t];
    }
  }

 private:
  // Nodes that attend together at most: their scores stay in the second cache.
  static constexpr int64_t PIECE = 32;
  // Items of attention for each thread from which on they are shared out whole.
  static constexpr int64_t MANY = 4;

  int64_t nodes_ = 0, heads_stride_ = 0, hidden_stride_ = 0, inner_stride_ = 0, angles_stride_ = 0, inputs_stride_ = 0;
  std::vector<Piece> pieces_;
  OwnRows own_rows_;
  std::vector<int64_t> text_of_, node_of_;  // of the nodes of all texts
  std::vector<int64_t> text_first_;         // the first node of each text
  Buffer x_, angles_, pairs_, qkv_, attended_, gate_, up_, scratch_, inputs_;
  Buffer parts_;  // of the splits of attention, where threads share them out
  Rows rows_, mlp_rows_;
  // of mixtures of experts: a slot for each expert of each node, in the order of experts
  Rows slot_rows_, slot_inner_rows_;
  Buffer inner_out_;                 // [nodes][hidden] what MLPs beside experts give
  Buffer router_scores_, shares_;    // [nodes][experts]; [nodes][chosen] what a node's experts count for
  std::vector<int64_t> slots_;       // [nodes][chosen], experts of a node in order
  std::vector<int64_t> slot_first_;  // of experts, and the end
  struct Worker {
    Attention attention;
    Buffer row, head;
  };
  std::vector<Worker> workers_;

  void prepare(int threads, const std::vector<Text>& texts) {
    const int64_t vocabulary =
        layer_inputs ? std::min(embedding.vocabulary, layer_inputs->embedding.vocabulary) : embedding.vocabulary;
    nodes_ = 0;
    own_rows_.rows.clear(), own_rows_.starts.clear(), pieces_.clear();
    text_of_.clear(), node_of_.clear(), text_first_.clear();
    for (size_t t = 0; t < texts.size(); t++) {
      const Text& text = texts[t];
      text_first_.push_back(text_of_.size());
      for (int64_t node = 0; node < text.nodes; node++) {
        text_of_.push_back(t), node_of_.push_back(node);
        if (text.tokens[node] < 0 || text.tokens[node] >= vocabulary)
          throw std::invalid_argument("token " + std::to_string(text.tokens[node]) + " is not in a vocabulary of " +
                                      std::to_string(vocabulary));
      }
      cut(texts, t);
      nodes_ += text.nodes;
    }
    angles_stride_ = 0;
    for (const Rotary& rotary : rotaries) angles_stride_ += 2 * rotary.pairs();
    angles_.reserve<float>(nodes_ * angles_stride_);
    int64_t heads = 0, inner = 0, widest = hidden, chosen = 0, scores = 0;
    for (const Layer& each : layers) {
      heads = std::max({heads, each.qkv_room(), rounded_up(each.heads() * each.width, PANEL)});
      inner = std::max({inner, each.up.count * PANEL, each.input_gate.count * PANEL});
      widest = std::max({widest, each.out.inputs, each.down.inputs, each.input_projection.inputs});
      if (each.experts.empty()) continue;
      inner = std::max(inner, each.experts[0].up.count * PANEL);
      chosen = std::max(chosen, each.chosen), scores = std::max(scores, each.router.count * PANEL);
    }
    hidden_stride_ = rounded_up(hidden, PANEL), heads_stride_ = heads, inner_stride_ = inner;
    const int64_t slots = nodes_ * std::max<int64_t>(chosen, 1);
    x_.reserve<float>(nodes_ * hidden_stride_), scratch_.reserve<float>(slots * hidden_stride_);
    qkv_.reserve<float>(nodes_ * heads_stride_), attended_.reserve<float>(nodes_ * heads_stride_);
    gate_.reserve<float>(slots * inner_stride_), up_.reserve<float>(slots * inner_stride_);
    if (chosen) {
      inner_out_.reserve<float>(nodes_ * hidden_stride_);
      slot_rows_.reserve(slots, hidden), slot_inner_rows_.reserve(slots, inner);
      router_scores_.reserve<float>(nodes_ * scores), shares_.reserve<float>(slots);
    }
    if (layer_inputs) {
      inputs_stride_ = layer_inputs->projection.count * PANEL;
      inputs_.reserve<float>(nodes_ * inputs_stride_);
    }
    if (entry) {
      widest = std::max(widest, 2 * hidden);
      pairs_.reserve<float>(nodes_ * rounded_up(2 * hidden, PANEL));
    }
    rows_.reserve(nodes_, widest), mlp_rows_.reserve(nodes_, hidden);
    for (const Layer& each : layers) {
      const AttentionShape shape{each.width, each.groups, each.window};
      int64_t splits = 0;
      if ((int64_t)pieces_.size() * each.key_heads < MANY * threads)
        for (const Piece& piece : pieces_) splits += each.key_heads * Splits(shape, piece).count();
      parts_.reserve<float>(splits * PIECE * each.groups * Parts::stride(each.width));
    }
    if ((int)workers_.size() < threads) workers_.resize(threads);
    for (Worker& worker : workers_)
      worker.row.reserve<float>(hidden_stride_), worker.head.reserve<float>(heads_stride_);
  }

  // A text's pieces. Where every node sees all drafted rows before it, as in a prompt, those before a piece are shared.
  void cut(const std::vector<Text>& texts, int64_t t) {
    const Text& text = texts[t];
    auto& [rows, starts] = own_rows_;
    const int64_t before = text.drafted - text.nodes;
    bool chain = true;
    for (int64_t node = 0; node < text.nodes && chain; node++) {
      const bool* row = text.visible + node * text.drafted;
      chain = memchr(row, 0, before + node + 1) == nullptr &&
              memchr(row + before + node + 1, 1, text.nodes - node - 1) == nullptr;
    }
    for (int64_t first = 0; first < text.nodes; first += PIECE) {
      const int64_t nodes = std::min(PIECE, text.nodes - first), from = chain ? before + first : 0;
      const int64_t starts_at = starts.size();
      int64_t least = text.drafted;
      for (int64_t node = first; node < first + nodes; node++) {
        starts.push_back(rows.size());
        const bool* row = text.visible + node * text.drafted;
        for (int64_t drafted = from; drafted <= before + node; drafted++)
          if (row[drafted]) rows.push_back(text.length + drafted), least = std::min(least, drafted);
        const int64_t position = text.first_position + text.length + from + (int64_t)rows.size() - starts.back() - 1;
        if (position != text.positions[node])
          throw std::invalid_argument("node " + std::to_string(node) + " is at position " +
                                      std::to_string(text.positions[node]) + " and sees the rows of position " +
                                      std::to_string(position));
      }
      starts.push_back(rows.size());
      pieces_.push_back({t, first, nodes, text.length + from, text.length + least, text.length + before + first + nodes,
                         &own_rows_, starts_at});
    }
  }

  // Rows ready for a product, each thread some of them.
  void ready(Team& team, int thread, Rows& rows, const Norm& norm, Format format, int64_t inputs, const float* from,
             int64_t stride) {
    for (int64_t row = thread; row < nodes_; row += team.size()) {
      const float* x = from + row * stride;
      if (norm) {
        float* normed = workers_[thread].row.as<float>();
        norm.apply(x, normed);
        x = normed;
      }
      rows.take(row, format, inputs, x);
    }
  }

  void run(Team& team, int thread, const std::vector<Text>& texts, const float* states, const Results& results) {
    const Amx registers;
    float* x = x_.as<float>();
    for (int64_t row = thread; row < nodes_; row += team.size()) {
      const Text& text = texts[text_of_[row]];
      embed(text.tokens[node_of_[row]], x + row * hidden_stride_);
      for (size_t rotary = 0; rotary < rotaries.size(); rotary++)
        rotaries[rotary].angles(text.positions[node_of_[row]], angles_of(rotary, row));
    }
    if (entry) enter(team, thread, states);
    if (layer_inputs) read_inputs(team, thread, texts);
    const Panels& head = *this->head;
    for (size_t index = 0; index < layers.size(); index++) {
      const Panels& next = index + 1 < layers.size() ? layers[index + 1].qkv[0] : head;
      keep(team, thread, results, index, x);
      layer(team, thread, texts, index, next.panel(Share(next, thread, team.size()).first));
    }
    keep(team, thread, results, BEFORE_NORM, x);
    // the last norm, in place
    for (int64_t row = thread; row < nodes_ && norm; row += team.size())
      norm.apply(x + row * hidden_stride_, x + row * hidden_stride_);
    keep(team, thread, results, layers.size(), x);
    team.barrier();
    if (thread == 0) {
      rows_.count = 0;
      int64_t first = 0;
      for (const Text& text : texts) {
        for (int64_t node = text.wanted_first; node < text.wanted_end; node++)
          rows_.take(rows_.count++, head.format, hidden, x + (first + node) * hidden_stride_);
        first += text.nodes;
      }
    }
    team.barrier();
    const Share share(head, thread, team.size());
    multiply(head, rows_, share, {results.logits, results.stride}, nullptr);
    if (logits_divisor != 1 || logits_cap)
      for (int64_t row = 0; row < rows_.count; row++)
        for (int64_t i = share.first * PANEL; i < share.end * PANEL; i += LANES) {
          float* of = results.logits + row * results.stride + i;
          const Floats logits = load(of) / logits_divisor;
          store(of, logits_cap ? logits_cap * hyperbolic_tangent(logits / logits_cap) : logits);
        }
    team.barrier();
    if (thread == 0) rows_.count = nodes_;
  }

  void embed(int64_t token, float* to) const {
    embedding.read(token, to);
  }

  // Tokens beside states, and what the residual stream begins with.
  void enter(Team& team, int thread, const float* states) {
    float *x = x_.as<float>(), *pairs = pairs_.as<float>();
    const int64_t stride = rounded_up(2 * hidden, PANEL);
    const auto side = [&](const Norm& norm, const float* from, float* to) {
      if (norm) norm.apply(from, to);
      else memcpy(to, from, hidden * 4);
    };
    for (int64_t row = thread; row < nodes_; row += team.size()) {
      float *own = x + row * hidden_stride_, *pair = pairs + row * stride;
      float *state = pair + (entry->states_first ? 0 : hidden), *token = pair + (entry->states_first ? hidden : 0);
      side(entry->token, own, token), side(entry->state, states + row * hidden, state);
      memcpy(own, entry->residual_normed ? state : states + row * hidden, hidden * 4);
    }
    const Panels& projection = entry->projection;
    if (!projection.count) return;
    ready(team, thread, rows_, Norm(), projection.format, 2 * hidden, pairs, stride);
    team.barrier();
    const Panels& next = layers[0].qkv[0];
    multiply(projection, rows_, Share(projection, thread, team.size()), {x, hidden_stride_},
             next.panel(Share(next, thread, team.size()).first));
    team.barrier();
  }

  // What the layers read of tokens beside the residual stream.
  void read_inputs(Team& team, int thread, const std::vector<Text>& texts) {
    const LayerInputs& given = *layer_inputs;
    const int64_t width = given.width();
    float* inputs = inputs_.as<float>();
    ready(team, thread, rows_, Norm(), given.projection.format, hidden, x_.as<float>(), hidden_stride_);
    team.barrier();
    const Panels& next = layers[0].qkv[0];
    multiply(given.projection, rows_, Share(given.projection, thread, team.size()),
             {inputs, inputs_stride_, false, given.projection_scale},
             next.panel(Share(next, thread, team.size()).first));
    team.barrier();
    for (int64_t row = thread; row < nodes_; row += team.size()) {
      const int64_t token = texts[text_of_[row]].tokens[node_of_[row]];
      for (int64_t first = 0; first < given.embedding.width; first += width) {
        float* own = inputs + row * inputs_stride_ + first;
        given.norm.apply(own, own);
        for (int64_t i = 0; i < width; i++) own[i] = given.sum_scale * (own[i] + given.embedding.at(token, first + i));
      }
    }
  }

  // Adds what a layer makes of its own inputs, which the residual stream gates.
  void add_inputs(Team& team, int thread, const Layer& l, int64_t index, const char* next) {
    const int threads = team.size();
    const int64_t width = layer_inputs->width();
    float* gate = gate_.as<float>();
    ready(team, thread, rows_, Norm(), l.input_gate.format, hidden, x_.as<float>(), hidden_stride_);
    team.barrier();
    multiply(l.input_gate, rows_, Share(l.input_gate, thread, threads), {gate, inner_stride_},
             l.input_projection.panel(Share(l.input_projection, thread, threads).first));
    team.barrier();
    for (int64_t row = thread; row < nodes_; row += threads) {
      float* gated = gate + row * inner_stride_;
      const float* inputs = inputs_.as<float>() + row * inputs_stride_ + index * width;
      for (int64_t i = 0; i < width; i += LANES)
        store(gated + i, activate(l.activation, load(gated + i)) * load_some(inputs + i, width - i));
      rows_.take(row, l.input_projection.format, width, gated);
    }
    team.barrier();
    add(team, thread, l.input_projection, rows_, l.after_inputs, 1, next);
  }

  // States of a layer that were asked for.
  void keep(Team& team, int thread, const Results& results, int64_t layer, const float* x) const {
    for (const auto& [wanted, to] : results.states)
      if (wanted == layer)
        for (int64_t row = thread; row < nodes_; row += team.size())
          memcpy(to + row * hidden, x + row * hidden_stride_, hidden * 4);
  }

  void layer(Team& team, int thread, const std::vector<Text>& texts, int64_t index, const char* next) {
    const Layer& l = layers[index];
    const int threads = team.size();
    float *x = x_.as<float>(), *qkv = qkv_.as<float>(), *attended = attended_.as<float>();
    const auto first_of = [&](const Panels& weight) { return weight.panel(Share(weight, thread, threads).first); };

    const Format format = l.qkv[0].format;
    if (l.qkv[0].inputs == hidden) ready(team, thread, rows_, l.before_attention, format, hidden, x, hidden_stride_);
    else ready(team, thread, rows_, Norm(), format, 2 * hidden, pairs_.as<float>(), rounded_up(2 * hidden, PANEL));
    if (l.parallel) ready(team, thread, mlp_rows_, l.before_mlp, l.up.format, hidden, x, hidden_stride_);
    team.barrier();
    int64_t before = 0;
    for (size_t part = 0; part < l.qkv.size(); part++) {
      const Panels& own = l.qkv[part];
      const Panels& behind = part + 1 < l.qkv.size() ? l.qkv[part + 1] : l.out;
      multiply(own, rows_, Share(own, thread, threads), {qkv + before, heads_stride_}, first_of(behind));
      before += own.count * PANEL;
    }
    team.barrier();
    for (int64_t row = thread; row < nodes_; row += threads)
      place(l, texts[text_of_[row]], row, qkv + row * heads_stride_);
    team.barrier();
    attend(team, thread, l, texts);
    ready(team, thread, rows_, Norm(), l.out.format, l.out.inputs, attended, heads_stride_);
    team.barrier();
    const Panels& begin = !l.up.count ? l.router : l.gate.count ? l.gate : l.up;
    add(team, thread, l.out, rows_, l.after_attention, l.multiplier, first_of(begin));
    const char* behind = l.input_gate.count ? first_of(l.input_gate) : next;
    if (l.up.count) feed(team, thread, l, l.experts.empty() ? behind : first_of(l.router));
    if (!l.experts.empty()) mix(team, thread, l, behind);
    if (l.input_gate.count) add_inputs(team, thread, l, index, next);
    if (l.scalar != 1)
      for (int64_t row = thread; row < nodes_; row += threads)
        for (int64_t i = 0; i < hidden; i++) x[row * hidden_stride_ + i] *= l.scalar;
  }

  // Adds what an MLP makes of the residual stream, or keeps it where there are experts beside it.
  void feed(Team& team, int thread, const Layer& l, const char* next) {
    const int threads = team.size();
    float *x = x_.as<float>(), *gate = gate_.as<float>(), *up = up_.as<float>();
    const auto first_of = [&](const Panels& weight) { return weight.panel(Share(weight, thread, threads).first); };
    if (!l.parallel) {
      ready(team, thread, mlp_rows_, l.before_mlp, l.up.format, hidden, x, hidden_stride_);
      team.barrier();
    }
    const Share share(l.up, thread, threads);
    if (l.gate.count) multiply(l.gate, mlp_rows_, share, {gate, inner_stride_}, first_of(l.up));
    multiply(l.up, mlp_rows_, share, {up, inner_stride_}, first_of(l.down));
    for (int64_t row = 0; row < nodes_; row++)
      for (int64_t i = share.first * PANEL; i < share.end * PANEL; i += LANES) {
        float *of = up + row * inner_stride_ + i, *gated = gate + row * inner_stride_ + i;
        store(of, l.gate.count ? activate(l.activation, load(gated)) * load(of) : activate(l.activation, load(of)));
      }
    team.barrier();
    ready(team, thread, rows_, Norm(), l.down.format, l.down.inputs, up, inner_stride_);
    team.barrier();
    if (l.experts.empty()) return add(team, thread, l.down, rows_, l.after_mlp, l.multiplier, next);
    multiply(l.down, rows_, Share(l.down, thread, threads), {inner_out_.as<float>(), hidden_stride_}, next);
    team.barrier();
  }

  // Adds what a mixture of experts makes of the residual stream. A node's experts are added in their own order, so its
  // sum depends on no other node.
  void mix(Team& team, int thread, const Layer& l, const char* next) {
    const int threads = team.size();
    const Expert& like = l.experts[0];
    float *x = x_.as<float>(), *gate = gate_.as<float>(), *up = up_.as<float>(), *out = scratch_.as<float>();
    ready(team, thread, mlp_rows_, l.before_router, l.router.format, hidden, x, hidden_stride_);
    team.barrier();
    multiply(l.router, mlp_rows_, Share(l.router, thread, threads),
             {router_scores_.as<float>(), l.router.count * PANEL}, nullptr);
    team.barrier();
    if (thread == 0) route(l);
    team.barrier();
    for (int64_t row = thread; row < nodes_; row += threads) {
      float* normed = workers_[thread].row.as<float>();
      l.before_experts.apply(x + row * hidden_stride_, normed);
      for (int64_t i = 0; i < l.chosen; i++)
        slot_rows_.take(slots_[row * l.chosen + i], like.up.format, hidden, normed);
    }
    team.barrier();
    for (size_t index = 0; index < l.experts.size(); index++) {
      const int64_t first = slot_first_[index], count = slot_first_[index + 1] - first;
      if (!count) continue;
      const Expert& expert = l.experts[index];
      const RowsView rows = slot_rows_.some(first, count);
      const Share share(expert.up, thread, threads);
      float *gated = gate + first * inner_stride_, *inner = up + first * inner_stride_;
      multiply(expert.gate, rows, share, {gated, inner_stride_}, expert.up.panel(share.first));
      multiply(expert.up, rows, share, {inner, inner_stride_}, nullptr);
      for (int64_t row = 0; row < count; row++)
        for (int64_t i = row * inner_stride_ + share.first * PANEL; i < row * inner_stride_ + share.end * PANEL;
             i += LANES)
          store(inner + i, activate(l.activation, load(gated + i)) * load(inner + i));
    }
    team.barrier();
    for (int64_t slot = thread; slot < nodes_ * l.chosen; slot += threads)
      slot_inner_rows_.take(slot, like.down.format, like.down.inputs, up + slot * inner_stride_);
    team.barrier();
    for (size_t index = 0; index < l.experts.size(); index++) {
      const int64_t first = slot_first_[index], count = slot_first_[index + 1] - first;
      const Panels& down = l.experts[index].down;
      if (count)
        multiply(down, slot_inner_rows_.some(first, count), Share(down, thread, threads),
                 {out + first * hidden_stride_, hidden_stride_}, next);
    }
    team.barrier();
    for (int64_t row = thread; row < nodes_; row += threads) {
      const bool stands_beside = l.up.count > 0;
      float *to = x + row * hidden_stride_, *sum = stands_beside ? workers_[thread].row.as<float>() : to;
      if (stands_beside) memset(sum, 0, hidden * 4);
      for (int64_t i = 0; i < l.chosen; i++) {
        const float share = l.multiplier * shares_.as<float>()[row * l.chosen + i];
        const float* own = out + slots_[row * l.chosen + i] * hidden_stride_;
        for (int64_t c = 0; c < hidden; c++) sum[c] += share * own[c];
      }
      if (!stands_beside) continue;
      float* beside = inner_out_.as<float>() + row * hidden_stride_;
      l.after_inner.apply(beside, beside), l.after_experts.apply(sum, sum);
      for (int64_t c = 0; c < hidden; c++) sum[c] += beside[c];
      l.after_mlp.apply(sum, sum);
      for (int64_t c = 0; c < hidden; c++) to[c] += sum[c];
    }
    team.barrier();
  }

  // The experts of every node, by a softmax over all scores, and their slots. Of equal scores the first expert is
  // taken.
  void route(const Layer& l) {
    const int64_t experts = l.experts.size(), stride = l.router.count * PANEL;
    slots_.resize(nodes_ * l.chosen), slot_first_.assign(experts + 1, 0);
    std::vector<int64_t> order(experts);
    for (int64_t node = 0; node < nodes_; node++) {
      float *scores = router_scores_.as<float>() + node * stride, *shares = shares_.as<float>() + node * l.chosen;
      for (int64_t i = 0; i < experts; i++) order[i] = i;
      std::partial_sort(order.begin(), order.begin() + l.chosen, order.end(), [scores](int64_t a, int64_t b) {
        return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
      });
      const float most = scores[order[0]];
      float sum = 0;
      if (l.rescaled)
        for (int64_t i = 0; i < l.chosen; i++) sum += std::exp(scores[order[i]] - most);
      else
        for (int64_t i = 0; i < experts; i++) sum += std::exp(scores[i] - most);
      std::sort(order.begin(), order.begin() + l.chosen);
      for (int64_t i = 0; i < l.chosen; i++) {
        slots_[node * l.chosen + i] = order[i], slot_first_[order[i] + 1]++;
        shares[i] = std::exp(scores[order[i]] - most) / sum;
        if (!l.expert_scales.empty()) shares[i] *= l.expert_scales[order[i]];
      }
    }
    for (int64_t expert = 0; expert < experts; expert++) slot_first_[expert + 1] += slot_first_[expert];
    std::vector<int64_t> free(slot_first_.begin(), slot_first_.end() - 1);
    for (int64_t& slot : slots_) slot = free[slot]++;
  }

  // Adds a product to the residual stream, normed first where there is a norm behind it.
  void add(Team& team, int thread, const Panels& weight, const RowsView& rows, const Norm& norm, float multiplier,
           const char* next) {
    float* x = x_.as<float>();
    const Share share(weight, thread, team.size());
    if (!norm) {
      multiply(weight, rows, share, {x, hidden_stride_, true, multiplier}, next);
      team.barrier();
      return;
    }
    float *out = scratch_.as<float>(), *normed = workers_[thread].row.as<float>();
    multiply(weight, rows, share, {out, hidden_stride_}, next);
    team.barrier();
    for (int64_t row = thread; row < nodes_; row += team.size()) {
      norm.apply(out + row * hidden_stride_, normed);
      for (int64_t i = 0; i < hidden; i++) x[row * hidden_stride_ + i] += multiplier * normed[i];
    }
    team.barrier();
  }

  // Norms and turns the heads of a node, scales its queries, and writes its keys and values into the cache.
  void place(const Layer& l, const Text& text, int64_t of_pass, float* heads) {
    const int64_t queries = l.query_heads(), width = l.width;
    const int64_t row = text.length + text.drafted - text.nodes + node_of_[of_pass];
    float *key = heads + queries * width, *value = key + l.key_heads * width;
    int64_t from = 0, to = 0;
    for (const Panels& part : l.qkv) {  // behind each other, without the room for whole panels
      if (from != to) memmove(heads + to, heads + from, part.outputs * 4);
      from += part.count * PANEL, to += part.outputs;
    }
    const auto normed = [&](const Norm& norm, float* from, int64_t count) {
      if (!norm) return;
      const int64_t step = norm.scale.size();  // a head, or all of them
      for (int64_t at = 0; at < count * width; at += step) norm.apply(from + at, from + at);
    };
    if (l.projected == 1) memcpy(value, key, l.key_heads * width * 4);
    normed(l.query, heads, queries);
    normed(l.key, key, l.key_heads);
    normed(l.value, value, l.key_heads);
    const int64_t rotary = text.long_rope && l.long_rotary != NONE ? l.long_rotary : l.rotary;
    if (rotary != NONE)
      for (int64_t head = 0; head < queries + (l.projected ? l.key_heads : 0); head++)
        rotaries[rotary].turn(heads + head * width, angles_of(rotary, of_pass));
    for (int64_t i = 0; i < queries * width; i++) heads[i] *= l.scale;
    for (int64_t head = 0; head < l.key_heads && l.projected; head++) {
      rows_of(l, l.key_slot, text, head).write(row, key + head * width);
      rows_of(l, l.value_slot, text, head).write(row, value + head * width);
    }
  }

  // The cosines and sines of a rotary embedding for a node of the pass.
  float* angles_of(int64_t rotary, int64_t node) const {
    float* angles = angles_.as<float>() + node * angles_stride_;
    for (int64_t before = 0; before < rotary; before++) angles += 2 * rotaries[before].pairs();
    return angles;
  }

  HeadRows rows_of(const Layer& l, int64_t slot, const Text& text, int64_t head) const {
    const CacheRows& rows = text.buffers[l.buffer];
    return {rows.data + slot * rows.slot_bytes + head * rows.head_bytes, cached, l.width};
  }

  // Threads share out pieces and heads, and where these are few the splits of each, whose parts are joined then.
  void attend(Team& team, int thread, const Layer& l, const std::vector<Text>& texts) {
    const AttentionShape shape{l.width, l.groups, l.window};
    Attention& attention = workers_[thread].attention;
    const int64_t items = pieces_.size() * l.key_heads, threads = team.size();
    const auto keys = [&](const Piece& piece, int64_t head) {
      return std::make_pair(rows_of(l, l.key_slot, texts[piece.text], head),
                            rows_of(l, l.value_slot, texts[piece.text], head));
    };
    const auto take = [&](const Piece& piece, int64_t head) {
      attention.take(shape, piece, [&](int64_t node, int64_t group) {
        return head_of(qkv_.as<float>(), l, piece, node, head * l.groups + group);
      });
    };
    const auto give = [&](const Piece& piece, int64_t head, const Parts& parts) {
      for (int64_t i = 0; i < piece.nodes * l.groups; i++) {
        float* to = head_of(attended_.as<float>(), l, piece, i / l.groups, head * l.groups + i % l.groups);
        const float inverse = 1 / parts.sum(i);
        for (int64_t c = 0; c < l.width; c++) to[c] = parts.values(i)[c] * inverse;
      }
    };
    if (items % threads == 0 || items >= MANY * threads) {
      for (int64_t item = thread; item < items; item += threads) {
        const Piece& piece = pieces_[item / l.key_heads];
        const int64_t head = item % l.key_heads;
        const auto [key_rows, value_rows] = keys(piece, head);
        take(piece, head);
        give(piece, head, attention.attend(shape, piece, key_rows, value_rows));
      }
      team.barrier();
      return;
    }
    // the splits of items, behind each other, and their parts
    const int64_t columns = rounded_up(l.width, PANEL), room = PIECE * l.groups * Parts::stride(l.width);
    int64_t split = 0;
    for (int64_t item = 0; item < items; item++) {
      const Piece& piece = pieces_[item / l.key_heads];
      const int64_t head = item % l.key_heads;
      const auto [key_rows, value_rows] = keys(piece, head);
      const Splits splits(shape, piece);
      bool taken = false;
      for (int64_t own = splits.first; own < splits.end; own++, split++) {
        if (split % threads != thread) continue;
        if (!taken) take(piece, head), taken = true;
        attention.attend(shape, piece, key_rows, value_rows, own, Parts{parts_.as<float>() + split * room, columns});
      }
    }
    team.barrier();
    split = 0;
    for (int64_t item = 0; item < items; item++) {
      const Piece& piece = pieces_[item / l.key_heads];
      const int64_t count = Splits(shape, piece).count();
      if (item % threads == thread) {
        const Parts all{parts_.as<float>() + split * room, columns};
        for (int64_t next = 1; next < count; next++)
          all.join(Parts{parts_.as<float>() + (split + next) * room, columns}, piece.nodes * l.groups);
        give(piece, item % l.key_heads, all);
      }
      split += count;
    }
    team.barrier();
  }

  // A head of a node of a piece, in rows of all heads of the pass.
  float* head_of(float* rows, const Layer& l, const Piece& piece, int64_t node, int64_t head) const {
    return rows + (text_first_[piece.text] + piece.first + node) * heads_stride_ + head * l.width;
  }
};

}  // namespace drafttree
