// The bindings. Arrays are handed over as they lie in memory; nothing of torch is needed to build this. numpy's come as
// arrays, torch's tensors in a pass as addresses: it takes microseconds to ask torch for one as an array.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>

#include "pass.h"

namespace nb = nanobind;
using namespace drafttree;
using namespace nb::literals;

namespace {

typedef nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig> Array;
typedef nb::ndarray<const float, nb::ndim<1>, nb::device::cpu, nb::c_contig> Vector;
typedef nb::ndarray<const int64_t, nb::ndim<1>, nb::device::cpu, nb::c_contig> Integers;
typedef nb::ndarray<const bool, nb::ndim<2>, nb::device::cpu, nb::c_contig> Mask;
// what a call writes
typedef nb::ndarray<int64_t, nb::ndim<2>, nb::device::cpu, nb::c_contig> TokenRows;
typedef nb::ndarray<float, nb::ndim<2>, nb::device::cpu, nb::c_contig> LogprobRows;

Format cache_format(const std::string& name) {
  if (name == "float32") return Format::float32;
  if (name == "bfloat16") return Format::bfloat16;
  throw std::invalid_argument("a cache is in '" + name + "'; it may be in float32 or bfloat16");
}

const std::map<std::string, Format> BLOCKS = {
    {"q4_0", Format::q4_0}, {"q4_1", Format::q4_1}, {"q4_zero", Format::q4_zero},
    {"q4_k", Format::q4_k}, {"q5_0", Format::q5_0}, {"q5_1", Format::q5_1},
    {"q5_k", Format::q5_k}, {"q6_k", Format::q6_k}, {"q8_0", Format::q8_0}};

Format format_of(const Array& array) {
  const auto dtype = array.dtype();
  if (dtype == nb::dtype<float>()) return Format::float32;
  if (dtype.code == (uint8_t)nb::dlpack::dtype_code::Bfloat && dtype.bits == 16) return Format::bfloat16;
  if (dtype == nb::dtype<int8_t>()) return Format::int8;
  throw std::invalid_argument("an array of weights is neither float32 nor bfloat16 nor int8");
}

// Inputs of so many bytes of blocks, 0 where the last is none.
int64_t inputs_of_bytes(Format format, int64_t bytes) {
  return visit_blocks(format, [&](auto block) {
    return bytes % block.BYTES ? 0 : bytes / block.BYTES * block.GROUPS * GROUP;
  });
}

Activation activation_of(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  throw std::invalid_argument("an activation is '" + name + "'; it may be silu, gelu, gelu_tanh or relu");
}

// A `ProductWeights` of Python: weights behind each other as one product, their bias, the scales of int8 weights, and
// the name of the blocks that weights of bytes `[outputs, bytes]` are; all but the weights may be None. It is read as
// the weights are.
Panels packed(int threads, nb::handle given) {
  int64_t outputs = 0, inputs = 0;
  std::vector<const char*> rows;
  const auto parts = nb::cast<std::vector<Array>>(given.attr("weights"));
  const nb::object blocks = given.attr("blocks"), given_bias = given.attr("bias");
  const bool has_blocks = !blocks.is_none();
  const Format format = has_blocks ? BLOCKS.at(nb::cast<std::string>(blocks)) : format_of(parts.at(0));
  for (const Array& part : parts) {
    if (part.ndim() != 2 || (has_blocks ? part.dtype() != nb::dtype<uint8_t>() : format_of(part) != format))
      throw std::invalid_argument("the weights of a product are no matrices, or have several dtypes");
    const int64_t own = has_blocks ? inputs_of_bytes(format, part.shape(1)) : part.shape(1);
    if (own < 1 || (inputs && own != inputs))
      throw std::invalid_argument("the weights of a product have no whole blocks, or other numbers of inputs");
    inputs = own;
    const int64_t bytes = Panels::row_bytes(format, inputs);
    for (size_t row = 0; row < part.shape(0); row++) rows.push_back((const char*)part.data() + row * bytes);
    outputs += part.shape(0);
  }
  const auto numbers = [&](const nb::object& of) {
    const auto found = nb::cast<Vector>(of);
    if ((int64_t)found.shape(0) != outputs)
      throw std::invalid_argument("a bias or scales have another length than their product");
    return found;
  };
  std::optional<Vector> bias, scales;
  if (!given_bias.is_none()) bias = numbers(given_bias);
  if (format == Format::int8) scales = numbers(given.attr("scales"));
  nb::gil_scoped_release released;
  Panels made = Panels::pack(threads, format, rows, inputs);
  if (bias) memcpy(made.biases.as<float>(), bias->data(), outputs * 4);
  if (scales) memcpy(made.scales.as<float>(), scales->data(), outputs * 4);
  return made;
}

// A `Norm` of Python, whose shift may be None.
Norm norm_of(nb::handle given) {
  Norm made;
  const auto scale = nb::cast<Vector>(given.attr("scale"));
  made.scale.assign(scale.data(), scale.data() + scale.shape(0));
  made.shift.assign(scale.shape(0), 0);
  if (const nb::object given_shift = given.attr("shift"); !given_shift.is_none()) {
    const auto shift = nb::cast<Vector>(given_shift);
    if (shift.shape(0) != scale.shape(0)) throw std::invalid_argument("a norm's scale and shift have two lengths");
    made.shift.assign(shift.data(), shift.data() + shift.shape(0));
  }
  made.epsilon = nb::cast<float>(given.attr("epsilon")), made.centred = nb::cast<bool>(given.attr("centred"));
  return made;
}

// Whether a norm is one of so many numbers, if it is one.
bool fits(const Norm& norm, int64_t width) { return !norm || (int64_t)norm.scale.size() == width; }
// Whether it is one of a head, or of all heads.
bool divides(const Norm& norm, int64_t width) { return !norm || width % (int64_t)norm.scale.size() == 0; }

// A text of a pass as Python describes it, with the arrays that it reads.
struct PassText : Text {
  Integers token_array, position_array;
  Mask visible_array;

  PassText(Integers tokens, Integers positions, Mask visible, int64_t length, int64_t first_position, bool long_rope,
           int64_t wanted_first, int64_t wanted_end, std::vector<CacheRows> buffers)
      : token_array(std::move(tokens)), position_array(std::move(positions)), visible_array(std::move(visible)) {
    this->tokens = token_array.data(), this->positions = position_array.data(), this->visible = visible_array.data();
    nodes = token_array.shape(0), drafted = visible_array.shape(1);
    this->length = length, this->first_position = first_position, this->long_rope = long_rope;
    this->wanted_first = wanted_first, this->wanted_end = wanted_end, this->buffers = std::move(buffers);
    if ((int64_t)position_array.shape(0) != nodes || (int64_t)visible_array.shape(0) != nodes || drafted < nodes)
      throw std::invalid_argument("the arrays of a text are of several numbers of nodes");
    if (wanted_first < 0 || wanted_end > nodes)
      throw std::invalid_argument("logits are wanted of nodes that a text does not have");
  }
};

std::vector<Text> texts_of(const nb::list& given) {
  std::vector<Text> texts;
  for (nb::handle text : given) texts.push_back(nb::cast<const PassText&>(text));
  return texts;
}

Embedding embedding_of(const Array& table, float scale) {
  if (table.ndim() != 2 || format_of(table) == Format::int8)
    throw std::invalid_argument("embeddings are no matrix of float32 or bfloat16");
  const int64_t vocabulary = table.shape(0), width = table.shape(1);
  return {(const char*)table.data(), nullptr, format_of(table), vocabulary, width, scale};
}

struct Held : Model {
  int threads;
  std::optional<Array> embeddings;  // read where they lie, as those of layers
  Array layer_embeddings;

  Held(int threads, const nb::object& table, int64_t width, float scale, const std::string& cached,
       const nb::object& blocks)
      : threads(threads) {
    this->cached = embedding.format = cache_format(cached);
    embedding.width = width, embedding.scale = scale;
    if (!table.is_none()) {
      embeddings = nb::cast<Array>(table);
      if (blocks.is_none()) {
        embedding = embedding_of(*embeddings, scale);
      } else {
        embedding.blocks = BLOCKS.at(nb::cast<std::string>(blocks));
        if (embeddings->ndim() != 2 || inputs_of_bytes(embedding.blocks, embeddings->shape(1)) != width)
          throw std::invalid_argument("embeddings in blocks are not of the width of a model");
        embedding.table = (const char*)embeddings->data(), embedding.vocabulary = embeddings->shape(0);
      }
    }
    hidden = embedding.width;
  }

  // Reads embeddings out of an output projection.
  void take_embedding(std::shared_ptr<const Panels> panels) {
    if (panels == nullptr || panels->inputs != hidden)
      throw std::invalid_argument("the sizes of the embeddings do not fit those of the model");
    embedding.vocabulary = panels->outputs, embedding.panels = std::move(panels);
  }

  const Panels& product(int64_t layer, const std::string& name) const {
    if (layer == -1 && name == "head") return *head;
    if (layer == -1 && name == "layer_inputs" && layer_inputs) return layer_inputs->projection;
    const Layer& of = layers.at(layer);
    if (name == "router") return of.router;
    if (name.rfind("qkv/", 0) == 0) return of.qkv.at(std::stoul(name.substr(4)));
    if (const size_t at = name.find('/'); at != std::string::npos) {  // as gate/17: of an expert
      const Expert& expert = of.experts.at(std::stoul(name.substr(at + 1)));
      const std::string part = name.substr(0, at);
      return part == "gate" ? expert.gate : part == "up" ? expert.up : expert.down;
    }
    for (auto [known, weight] : std::initializer_list<std::pair<const char*, const Panels*>>{
             {"out", &of.out}, {"gate", &of.gate}, {"up", &of.up}, {"down", &of.down},
             {"input_gate", &of.input_gate}, {"input_projection", &of.input_projection}})
      if (name == known) return *weight;
    throw std::invalid_argument("there is no product '" + name + "'");
  }

  void add_layer(const nb::dict& norms, const nb::dict& weights, const nb::dict& shape) {
    Layer layer;
    for (auto [name, norm] :
         std::initializer_list<std::pair<const char*, Norm*>>{{"before_attention", &layer.before_attention},
                                                              {"after_attention", &layer.after_attention},
                                                              {"before_mlp", &layer.before_mlp},
                                                              {"after_mlp", &layer.after_mlp},
                                                              {"query", &layer.query},
                                                              {"key", &layer.key},
                                                              {"value", &layer.value},
                                                              {"after_inputs", &layer.after_inputs},
                                                              {"before_router", &layer.before_router},
                                                              {"before_experts", &layer.before_experts},
                                                              {"after_inner", &layer.after_inner},
                                                              {"after_experts", &layer.after_experts}})
      if (norms.contains(name) && !norms[name].is_none()) *norm = norm_of(norms[name]);
    for (auto [name, weight] : std::initializer_list<std::pair<const char*, Panels*>>{
             {"out", &layer.out}, {"gate", &layer.gate}, {"up", &layer.up}, {"down", &layer.down},
             {"input_gate", &layer.input_gate}, {"input_projection", &layer.input_projection}})
      if (weights.contains(name)) *weight = packed(threads, weights[name]);
    for (size_t part = 0; weights.contains(("qkv/" + std::to_string(part)).c_str()); part++)
      layer.qkv.push_back(packed(threads, weights[("qkv/" + std::to_string(part)).c_str()]));
    if (layer.qkv.empty()) throw std::invalid_argument("a layer has no products of queries, keys and values");
    for (const Panels& part : layer.qkv)
      if (part.inputs != layer.qkv[0].inputs || !reads_alike(part.format, layer.qkv[0].format))
        throw std::invalid_argument("queries, keys and values are not made of the same rows");
    const int64_t experts = shape.contains("experts") ? nb::cast<int64_t>(shape["experts"]) : 0;
    if (experts) {
      layer.router = packed(threads, weights["router"]);
      layer.chosen = nb::cast<int64_t>(shape["chosen"]), layer.rescaled = nb::cast<bool>(shape["rescaled"]);
      const auto part = [&](const char* name, int64_t expert) {
        return packed(threads, weights[(name + ("/" + std::to_string(expert))).c_str()]);
      };
      for (int64_t expert = 0; expert < experts; expert++)
        layer.experts.push_back({part("gate", expert), part("up", expert), part("down", expert)});
      if (shape.contains("expert_scales")) {
        const auto scales = nb::cast<Vector>(shape["expert_scales"]);
        layer.expert_scales.assign(scales.data(), scales.data() + scales.shape(0));
      }
      const bool stands_beside = layer.up.count > 0;
      if (layer.router.outputs != experts || layer.router.inputs != hidden || layer.chosen < 1 ||
          layer.chosen > experts || !layer.before_router || !layer.before_experts ||
          (stands_beside ? !layer.after_inner || !layer.after_experts || !layer.after_mlp : (bool)layer.after_mlp) ||
          (!layer.expert_scales.empty() && (int64_t)layer.expert_scales.size() != experts))
        throw std::invalid_argument("the sizes of a mixture of experts do not fit together");
      const Expert& first = layer.experts[0];
      for (const Expert& each : layer.experts)
        if (each.gate.format != first.up.format || each.up.format != first.up.format ||
            each.down.format != first.down.format)
          throw std::invalid_argument("the experts of a layer are of several formats");
      for (const Expert& each : layer.experts)
        if (each.gate.outputs != each.up.outputs || each.gate.inputs != hidden || each.up.inputs != hidden ||
            each.down.inputs != each.up.outputs || each.down.outputs != hidden)
          throw std::invalid_argument("the sizes of an expert do not fit together");
    }
    layer.key_heads = nb::cast<int64_t>(shape["key_heads"]), layer.groups = nb::cast<int64_t>(shape["groups"]);
    layer.width = nb::cast<int64_t>(shape["width"]);
    if (!shape["rotary"].is_none()) layer.rotary = nb::cast<int64_t>(shape["rotary"]);
    if (shape.contains("long_rotary")) layer.long_rotary = nb::cast<int64_t>(shape["long_rotary"]);
    if (!shape["window"].is_none()) layer.window = nb::cast<int64_t>(shape["window"]);
    layer.scale = nb::cast<float>(shape["scale"]), layer.multiplier = nb::cast<float>(shape["multiplier"]);
    layer.buffer = nb::cast<int64_t>(shape["buffer"]), layer.key_slot = nb::cast<int64_t>(shape["key_slot"]);
    layer.value_slot = nb::cast<int64_t>(shape["value_slot"]);
    if (shape.contains("projected")) layer.projected = nb::cast<int64_t>(shape["projected"]);
    if (shape.contains("scalar")) layer.scalar = nb::cast<float>(shape["scalar"]);
    layer.parallel = nb::cast<bool>(shape["parallel"]);
    layer.activation = activation_of(nb::cast<std::string>(shape["activation"]));
    const int64_t heads = (layer.groups + layer.projected) * layer.key_heads * layer.width;
    for (const Norm* norm :
         {&layer.before_attention, &layer.after_attention, &layer.before_mlp, &layer.after_mlp, &layer.after_inputs,
          &layer.before_router, &layer.before_experts, &layer.after_inner, &layer.after_experts})
      if (!fits(*norm, hidden)) throw std::invalid_argument("the sizes of a layer do not fit together");
    const bool reads_pair = layers.empty() && entry && !entry->projection.count;
    if (layer.qkv_outputs() != heads || layer.qkv[0].inputs != (reads_pair ? 2 : 1) * hidden ||
        layer.out.outputs != hidden || layer.out.inputs != layer.query_heads() * layer.width ||
        ((!experts || layer.up.count) && (layer.up.inputs != hidden || layer.down.outputs != hidden)) ||
        layer.down.inputs != layer.up.outputs || layer.projected < 0 || layer.projected > 2 ||
        (layer.input_gate.count != 0) != (layer_inputs != nullptr) ||
        (layer_inputs && (layer.input_gate.inputs != hidden || layer.input_gate.outputs != layer_inputs->width() ||
                          layer.input_projection.inputs != layer_inputs->width() ||
                          layer.input_projection.outputs != hidden)) ||
        (layer.gate.count && layer.gate.outputs != layer.up.outputs) || layer.rotary < NONE ||
        layer.rotary >= (int64_t)rotaries.size() || layer.long_rotary < NONE ||
        layer.long_rotary >= (int64_t)rotaries.size() ||
        !divides(layer.query, layer.query_heads() * layer.width) ||
        !divides(layer.key, layer.key_heads * layer.width) || !divides(layer.value, layer.key_heads * layer.width))
      throw std::invalid_argument("the sizes of a layer do not fit together");
    layers.push_back(std::move(layer));
  }

  void add_layer_inputs(const Array& table, float scale, const nb::object& projection, float projection_scale,
                        const nb::object& norm, float sum_scale) {
    layer_inputs = std::make_unique<LayerInputs>();
    layer_embeddings = table, layer_inputs->embedding = embedding_of(table, scale);
    layer_inputs->projection = packed(threads, projection), layer_inputs->norm = norm_of(norm);
    layer_inputs->projection_scale = projection_scale, layer_inputs->sum_scale = sum_scale;
    const Panels& own = layer_inputs->projection;
    if (own.inputs != hidden || own.outputs != layer_inputs->embedding.width ||
        !divides(layer_inputs->norm, layer_inputs->embedding.width))
      throw std::invalid_argument("the sizes of the inputs of layers do not fit together");
  }

  void add_entry(const nb::object& token, const nb::object& state, const nb::object& projection, bool states_first,
                 bool residual_normed) {
    entry = std::make_unique<Entry>();
    if (!token.is_none()) entry->token = norm_of(token);
    if (!state.is_none()) entry->state = norm_of(state);
    if (!projection.is_none()) entry->projection = packed(threads, projection);
    entry->states_first = states_first, entry->residual_normed = residual_normed;
    const Panels& own = entry->projection;
    if (!fits(entry->token, hidden) || !fits(entry->state, hidden) ||
        (own.count && (own.inputs != 2 * hidden || own.outputs != hidden)))
      throw std::invalid_argument("the sizes of what a draft head begins with do not fit those of the head");
  }

  void add_head(const nb::object& norm, std::shared_ptr<const Panels> weight, float divisor, float cap) {
    if (!norm.is_none()) this->norm = norm_of(norm);
    head = std::move(weight), logits_divisor = divisor, logits_cap = cap;
    if (!embedding.table && !embedding.panels) take_embedding(head);
    const int64_t count = layers.size();
    if (head->inputs != hidden || !fits(this->norm, hidden) ||
        (layer_inputs && layer_inputs->embedding.width != count * layer_inputs->width()))
      throw std::invalid_argument("the sizes of the head do not fit those of the model");
  }
};

}  // namespace

NB_MODULE(NATIVE_VARIANT, module) {
  nb::set_leak_warnings(false);  // models that live until the end of the process, in caches of Python, are no leaks
  module.attr("panel") = PANEL;
  module.def("may_run", &Amx::may_run);
  module.def("use_openmp", &OpenMP::use, "path"_a);
  module.def("trim_heap", &trim_heap);
  // logits: the address of [rows][stride]; log-probabilities and tokens [rows, count] are written
  module.def(
      "best_tokens",
      [](int threads, intptr_t logits, int64_t stride, int64_t columns, int64_t allowed, const LogprobRows& logprobs,
         const TokenRows& tokens) {
        const int64_t rows = logprobs.shape(0), count = logprobs.shape(1);
        if (count < 1 || count > allowed || allowed > columns || columns > stride)
          throw std::invalid_argument("there are not as many candidates as are asked for");
        if ((int64_t)tokens.shape(0) != rows || (int64_t)tokens.shape(1) != count)
          throw std::invalid_argument("there are not as many tokens as log-probabilities");
        const Candidates candidates{(const float*)logits, stride,         columns, allowed, count,
                                    logprobs.data(),      tokens.data()};
        nb::gil_scoped_release released;
        candidates.find_all(threads, rows);
      },
      nb::kw_only(), "threads"_a, "logits"_a, "stride"_a, "columns"_a, "allowed"_a, "logprobs"_a.noconvert(),
      "tokens"_a.noconvert());
  // data: the address of [slots][key heads][rows][width]
  nb::class_<CacheRows>(module, "CacheRows")
      .def(
          "__init__",
          [](CacheRows* made, intptr_t data, int64_t slot_bytes, int64_t head_bytes) {
            new (made) CacheRows{(char*)data, slot_bytes, head_bytes};
          },
          nb::kw_only(), "data"_a, "slot_bytes"_a, "head_bytes"_a);
  // tokens and positions [nodes], visible [nodes, drafted]; the rest is as in `Text`
  nb::class_<PassText>(module, "PassText")
      .def(nb::init<Integers, Integers, Mask, int64_t, int64_t, bool, int64_t, int64_t, std::vector<CacheRows>>(),
           nb::kw_only(), "tokens"_a, "positions"_a, "visible"_a, "length"_a, "first_position"_a, "long_rope"_a,
           "wanted_first"_a, "wanted_end"_a, "buffers"_a);
  nb::class_<Held>(module, "Model")
      // embeddings: None for those of another model that are shared, or else of the head
      .def(nb::init<int, const nb::object&, int64_t, float, const std::string&, const nb::object&>(), nb::kw_only(),
           "threads"_a, "embeddings"_a.none(), "width"_a, "embedding_scale"_a, "cached"_a,
           "blocks"_a.none() = nb::none())
      .def(
          "share_embedding",
          [](Held& model, const Held& other) { model.take_embedding(other.embedding.panels); }, "other"_a)
      .def(
          "add_rotary",
          [](Held& model, const Vector& frequencies, float scaling) {
            model.rotaries.push_back({{frequencies.data(), frequencies.data() + frequencies.shape(0)}, scaling});
          },
          "frequencies"_a, "scaling"_a)
      // norms and weights by place in the layer
      .def("add_layer", &Held::add_layer, nb::kw_only(), "norms"_a, "weights"_a, "shape"_a)
      // what layers read of tokens beside the residual stream; before the layers
      .def("add_layer_inputs", &Held::add_layer_inputs, nb::kw_only(), "embeddings"_a, "embedding_scale"_a,
           "projection"_a, "projection_scale"_a, "norm"_a, "sum_scale"_a)
      // what a draft head begins with; before its layers
      .def("add_entry", &Held::add_entry, nb::kw_only(), "token_norm"_a.none(), "state_norm"_a.none(),
           "projection"_a.none(), "states_first"_a, "residual_normed"_a)
      .def(
          "add_head",
          [](Held& model, const nb::object& norm, const nb::object& weight, float divisor, float cap) {
            model.add_head(norm, std::make_shared<Panels>(packed(model.threads, weight)), divisor, cap);
          },
          nb::kw_only(), "norm"_a.none(), "weight"_a, "divisor"_a, "cap"_a)
      .def(
          "share_head",
          [](Held& model, const nb::object& norm, const Held& other, float divisor, float cap) {
            model.add_head(norm, other.head, divisor, cap), model.borrows_head = true;
          },
          nb::kw_only(), "norm"_a.none(), "other"_a, "divisor"_a, "cap"_a)
      // so many outputs of a product, as its weight had them, from the first on; layer -1 has the head
      .def(
          "unpack",
          [](const Held& model, int64_t layer, const std::string& name, int64_t first, int64_t count, intptr_t to) {
            const Panels& product = model.product(layer, name);
            if (first < 0 || count < 0 || first + count > product.outputs)
              throw std::invalid_argument("a product has no such outputs");
            nb::gil_scoped_release released;
            product.unpack(model.threads, first, count, (char*)to);
          },
          nb::kw_only(), "layer"_a, "name"_a, "first"_a, "count"_a, "to"_a)
      // so many outputs of a product by itself, from the first on; the addresses of rows [count][inputs] and of what
      // they become, [count][outputs]
      .def(
          "multiply",
          [](const Held& model, int threads, int64_t layer, const std::string& name, int64_t first, int64_t outputs,
             intptr_t rows, int64_t count, intptr_t to) {
            const Panels& product = model.product(layer, name);
            if (first < 0 || outputs < 1 || first + outputs > product.outputs)
              throw std::invalid_argument("a product has no such outputs");
            nb::gil_scoped_release released;
            multiply_alone(threads, product, first, outputs, (const float*)rows, count, (float*)to);
          },
          nb::kw_only(), "threads"_a, "layer"_a, "name"_a, "first"_a, "outputs"_a, "rows"_a, "count"_a, "to"_a)
      .def_ro("hidden", &Held::hidden)
      .def_prop_ro("room", [](const Held& model) { return model.head->count * PANEL; })  // numbers in a row of logits
      .def_prop_ro("nbytes", [](const Held& model) { return model.bytes(); })
      // texts: of `PassText`; inputs: the address of the states that a draft head reads, else 0; logits: the address of
      // [wanted][room]; states: layers, each with the address of [nodes][hidden]
      .def(
          "forward",
          [](Held& model, int threads, const nb::list& texts, intptr_t inputs, intptr_t logits,
             const std::vector<std::pair<int64_t, intptr_t>>& states) {
            if (!model.head) throw std::invalid_argument("a model without a head runs no pass");
            if ((inputs == 0) != (model.entry == nullptr))
              throw std::invalid_argument("a draft head reads states, and nothing else does");
            const std::vector<Text> read = texts_of(texts);
            Results results{(float*)logits, model.head->count * PANEL, {}};
            for (const auto& [layer, to] : states) results.states.push_back({layer, (float*)to});
            nb::gil_scoped_release released;
            model.forward(threads, read, (const float*)inputs, results);
          },
          nb::kw_only(), "threads"_a, "texts"_a, "inputs"_a, "logits"_a, "states"_a)
      // texts as of `forward`, of a node each; output: the layer whose states the next pass reads; ids: address of the
      // tokens that columns stand for, 0 for themselves; tokens and log-probabilities [count, texts] are written
      .def(
          "draft_chains",
          [](Held& model, int threads, const nb::list& texts, intptr_t inputs, int64_t output, int64_t allowed,
             intptr_t ids, const TokenRows& tokens, const LogprobRows& logprobs) {
            Chains chains;
            chains.texts = texts_of(texts), chains.states = (const float*)inputs, chains.output = output;
            chains.count = tokens.shape(0), chains.allowed = allowed, chains.ids = (const int64_t*)ids;
            chains.tokens = tokens.data(), chains.logprobs = logprobs.data();
            if (!model.head || allowed < 1 || allowed > model.head->outputs ||
                (inputs == 0) != (model.entry == nullptr))
              throw std::invalid_argument("chains of this model are not drafted from such inputs");
            if ((int64_t)logprobs.shape(0) != chains.count || tokens.shape(1) != chains.texts.size() ||
                logprobs.shape(1) != chains.texts.size())
              throw std::invalid_argument("there are not as many tokens or log-probabilities as texts");
            for (const Text& text : chains.texts)
              if (text.nodes != 1 || text.drafted != 1 || text.wanted_end - text.wanted_first != 1)
                throw std::invalid_argument("a chain begins with one node, behind committed rows");
            nb::gil_scoped_release released;
            model.draft(threads, chains);
          },
          nb::kw_only(), "threads"_a, "texts"_a, "inputs"_a, "output"_a, "allowed"_a, "ids"_a,
          "tokens"_a.noconvert(), "logprobs"_a.noconvert());
}
