// Groups as they lie in files: the blocks of llama.cpp's formats, and one for numbers that count from a whole number.
//
// `read` takes a group out of a block, `write` puts it into one that was zeros, so that both are each other's inverse.
#pragma once
#include "groups.h"

namespace drafttree {

// 32 numbers of four bits, the first 16 in the lower halves.
INLINE void read_nibbles(const uint8_t* from, uint8_t* numbers) {
  for (int i = 0; i < 16; i++) numbers[i] = from[i] & 15, numbers[16 + i] = from[i] >> 4;
}
INLINE void write_nibbles(uint8_t* to, const uint8_t* numbers) {
  for (int i = 0; i < 16; i++) to[i] = (numbers[i] & 15) | (numbers[16 + i] & 15) << 4;
}
// Their fifth bits, in the order of the numbers.
INLINE void read_fifths(const uint8_t* from, uint8_t* numbers) {
  for (int i = 0; i < 32; i++) numbers[i] |= (from[i / 8] >> i % 8 & 1) << 4;
}
INLINE void write_fifths(uint8_t* to, const uint8_t* numbers) {
  for (int i = 0; i < 32; i++) to[i / 8] |= (numbers[i] >> 4 & 1) << i % 8;
}

// d, numbers
struct Q4_0 {
  typedef GroupLayout<HalfScales<8>, 4> Layout;
  static constexpr int64_t GROUPS = 1, BYTES = 18;
  static Group read(const uint8_t* block, int64_t) {
    Group group;
    memcpy(&group.scale, block, 2), read_nibbles(block + 2, group.numbers);
    return group;
  }
  static void write(uint8_t* block, int64_t, const Group& group) {
    memcpy(block, &group.scale, 2), write_nibbles(block + 2, group.numbers);
  }
};

// d, m, numbers
struct Q4_1 {
  typedef GroupLayout<HalfScalesAndMins, 4> Layout;
  static constexpr int64_t GROUPS = 1, BYTES = 20;
  static Group read(const uint8_t* block, int64_t) {
    Group group;
    memcpy(&group.scale, block, 2), memcpy(&group.min, block + 2, 2), read_nibbles(block + 4, group.numbers);
    return group;
  }
  static void write(uint8_t* block, int64_t, const Group& group) {
    memcpy(block, &group.scale, 2), memcpy(block + 2, &group.min, 2), write_nibbles(block + 4, group.numbers);
  }
};

// d, the number that others count from, numbers (of no file: what GPTQ and AWQ have is written so)
struct Q4_ZERO {
  typedef GroupLayout<HalfScalesAndZeros, 4> Layout;
  static constexpr int64_t GROUPS = 1, BYTES = 19;
  static Group read(const uint8_t* block, int64_t) {
    Group group;
    memcpy(&group.scale, block, 2), group.inner[0] = block[2], read_nibbles(block + 3, group.numbers);
    return group;
  }
  static void write(uint8_t* block, int64_t, const Group& group) {
    memcpy(block, &group.scale, 2), block[2] = group.inner[0], write_nibbles(block + 3, group.numbers);
  }
};

// d, fifth bits, numbers
struct Q5_0 {
  typedef GroupLayout<HalfScales<16>, 5> Layout;
  static constexpr int64_t GROUPS = 1, BYTES = 22;
  static Group read(const uint8_t* block, int64_t) {
    Group group;
    memcpy(&group.scale, block, 2), read_nibbles(block + 6, group.numbers), read_fifths(block + 2, group.numbers);
    return group;
  }
  static void write(uint8_t* block, int64_t, const Group& group) {
    memcpy(block, &group.scale, 2), write_nibbles(block + 6, group.numbers), write_fifths(block + 2, group.numbers);
  }
};

// d, m, fifth bits, numbers
struct Q5_1 {
  typedef GroupLayout<HalfScalesAndMins, 5> Layout;
  static constexpr int64_t GROUPS = 1, BYTES = 24;
  static Group read(const uint8_t* block, int64_t) {
    Group group;
    memcpy(&group.scale, block, 2), memcpy(&group.min, block + 2, 2);
    read_nibbles(block + 8, group.numbers), read_fifths(block + 4, group.numbers);
    return group;
  }
  static void write(uint8_t* block, int64_t, const Group& group) {
    memcpy(block, &group.scale, 2), memcpy(block + 2, &group.min, 2);
    write_nibbles(block + 8, group.numbers), write_fifths(block + 4, group.numbers);
  }
};

// d, numbers from -128 to 127
struct Q8_0 {
  typedef GroupLayout<HalfScales<128>, 8> Layout;
  static constexpr int64_t GROUPS = 1, BYTES = 34;
  static Group read(const uint8_t* block, int64_t) {
    Group group;
    memcpy(&group.scale, block, 2);
    for (int i = 0; i < 32; i++) group.numbers[i] = block[2 + i] ^ 128;
    return group;
  }
  static void write(uint8_t* block, int64_t, const Group& group) {
    memcpy(block, &group.scale, 2);
    for (int i = 0; i < 32; i++) block[2 + i] = group.numbers[i] ^ 128;
  }
};

// The scale and the min of a group, six bits each, in 12 bytes for eight groups: those of the first four in the lower
// bits of four bytes each; of the others four bits in the last four bytes, and two in the upper bits of the first eight.
INLINE void read_sixes(const uint8_t* from, int64_t group, uint8_t* inner) {
  if (group < 4) {
    inner[0] = from[group] & 63, inner[1] = from[group + 4] & 63;
  } else {
    inner[0] = (from[group + 4] & 15) | (from[group - 4] >> 6) << 4;
    inner[1] = (from[group + 4] >> 4) | (from[group] >> 6) << 4;
  }
}
INLINE void write_sixes(uint8_t* to, int64_t group, const uint8_t* inner) {
  if (group < 4) {
    to[group] |= inner[0] & 63, to[group + 4] |= inner[1] & 63;
  } else {
    to[group + 4] |= (inner[0] & 15) | (inner[1] & 15) << 4;
    to[group - 4] |= (inner[0] >> 4) << 6, to[group] |= (inner[1] >> 4) << 6;
  }
}

// d, dmin, scales and mins, numbers: of two groups 32 bytes, the first in the lower halves
struct Q4_K {
  typedef GroupLayout<TwoLevels, 4> Layout;
  static constexpr int64_t GROUPS = 8, BYTES = 144;
  static Group read(const uint8_t* block, int64_t index) {
    Group group;
    memcpy(&group.scale, block, 2), memcpy(&group.min, block + 2, 2), read_sixes(block + 4, index, group.inner);
    const uint8_t* own = block + 16 + index / 2 * 32;
    for (int i = 0; i < 32; i++) group.numbers[i] = own[i] >> index % 2 * 4 & 15;
    return group;
  }
  static void write(uint8_t* block, int64_t index, const Group& group) {
    memcpy(block, &group.scale, 2), memcpy(block + 2, &group.min, 2), write_sixes(block + 4, index, group.inner);
    uint8_t* own = block + 16 + index / 2 * 32;
    for (int i = 0; i < 32; i++) own[i] |= (group.numbers[i] & 15) << index % 2 * 4;
  }
};

// d, dmin, scales and mins, fifth bits: a bit of each group in a byte, numbers as before
struct Q5_K {
  typedef GroupLayout<TwoLevels, 5> Layout;
  static constexpr int64_t GROUPS = 8, BYTES = 176;
  static Group read(const uint8_t* block, int64_t index) {
    Group group;
    memcpy(&group.scale, block, 2), memcpy(&group.min, block + 2, 2), read_sixes(block + 4, index, group.inner);
    const uint8_t *fifths = block + 16, *own = block + 48 + index / 2 * 32;
    for (int i = 0; i < 32; i++)
      group.numbers[i] = (own[i] >> index % 2 * 4 & 15) | (fifths[i] >> index & 1) << 4;
    return group;
  }
  static void write(uint8_t* block, int64_t index, const Group& group) {
    memcpy(block, &group.scale, 2), memcpy(block + 2, &group.min, 2), write_sixes(block + 4, index, group.inner);
    uint8_t *fifths = block + 16, *own = block + 48 + index / 2 * 32;
    for (int i = 0; i < 32; i++)
      own[i] |= (group.numbers[i] & 15) << index % 2 * 4, fifths[i] |= (group.numbers[i] >> 4 & 1) << index;
  }
};

// numbers' lower four bits, their upper two, scales of 16 numbers, d
struct Q6_K {
  typedef GroupLayout<ScalesOfHalves, 6> Layout;
  static constexpr int64_t GROUPS = 8, BYTES = 210;
  static Group read(const uint8_t* block, int64_t index) {
    Group group;
    memcpy(&group.scale, block + 208, 2), memcpy(group.inner, block + 192 + index * 2, 2);
    const int64_t half = index / 4, quarter = index % 4;
    const uint8_t *low = block + half * 64 + quarter % 2 * 32, *high = block + 128 + half * 32;
    for (int i = 0; i < 32; i++)
      group.numbers[i] = (low[i] >> quarter / 2 * 4 & 15) | (high[i] >> quarter * 2 & 3) << 4;
    return group;
  }
  static void write(uint8_t* block, int64_t index, const Group& group) {
    memcpy(block + 208, &group.scale, 2), memcpy(block + 192 + index * 2, group.inner, 2);
    const int64_t half = index / 4, quarter = index % 4;
    uint8_t *low = block + half * 64 + quarter % 2 * 32, *high = block + 128 + half * 32;
    for (int i = 0; i < 32; i++)
      low[i] |= (group.numbers[i] & 15) << quarter / 2 * 4, high[i] |= (group.numbers[i] >> 4 & 3) << quarter * 2;
  }
};

}  // namespace drafttree
