// Vectors of the width a build is for, by the vector extensions of GCC and Clang.
//
// Sums must not depend on how the compiler arranges them, so it may not fuse products and sums by itself
// (-ffp-contract=off): `fused` is where they are.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

namespace drafttree {

#if defined(__AVX512F__)
constexpr int WIDTH = 64;
#elif defined(__AVX2__)
constexpr int WIDTH = 32;
#else
constexpr int WIDTH = 16;
#endif
constexpr int LANES = WIDTH / 4;
#if defined(__AVX512BF16__)
constexpr bool HAS_BFLOAT16 = true;
#else
constexpr bool HAS_BFLOAT16 = false;
#endif

#if defined(__AVX512VNNI__)
constexpr bool HAS_BYTES = true;
#else
constexpr bool HAS_BYTES = false;
#endif

// bytes times bytes, added in pairs of 16 bits
#if defined(__AVX2__)
constexpr bool HAS_PAIRS_OF_BYTES = true;
#else
constexpr bool HAS_PAIRS_OF_BYTES = false;
#endif

typedef float Floats __attribute__((vector_size(WIDTH)));
typedef int32_t Ints __attribute__((vector_size(WIDTH)));
typedef uint32_t Unsigneds __attribute__((vector_size(WIDTH)));

template <class Vector = Floats>
INLINE Vector load(const void* from) {
  Vector vector;
  memcpy(&vector, from, WIDTH);
  return vector;
}
template <class Vector>
INLINE void store(void* to, Vector vector) {
  memcpy(to, &vector, WIDTH);
}

// The next numbers, as many as there are lanes, or fewer and zeros.
INLINE Floats load_some(const float* from, int64_t count) {
  if (count >= LANES) return load(from);
  Floats vector{};
  memcpy(&vector, from, count * 4);
  return vector;
}

INLINE Floats splat(float number) { return Floats{} + number; }
INLINE Ints splat(int32_t number) { return Ints{} + number; }
INLINE Ints broadcast(const char* from) {
  int32_t word;
  memcpy(&word, from, 4);
  return splat(word);
}

// a * b + c, rounded once where there is an instruction for it
INLINE Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
INLINE Floats magnitude(Floats a) { return (Floats)((Ints)a & splat(0x7fffffff)); }
INLINE Ints nearest(Floats a) {  // ties to even
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtps_epi32(a);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32(a);
#elif defined(__SSE2__)
  return (Ints)_mm_cvtps_epi32(a);
#else
  Ints out;
  for (int lane = 0; lane < LANES; lane++) out[lane] = (int32_t)__builtin_nearbyintf(a[lane]);
  return out;
#endif
}

// halves added to each other, then quarters: always this order
INLINE float sum(Floats a) {
  float lanes[LANES];
  store(lanes, a);
  UNROLL
  for (int half = LANES / 2; half; half /= 2)
    for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
  return lanes[0];
}
INLINE int32_t sum(Ints a) {
  int32_t all = 0;
  for (int lane = 0; lane < LANES; lane++) all += a[lane];
  return all;
}
INLINE float largest(Floats a) {
  float most = a[0];
  for (int lane = 1; lane < LANES; lane++) most = a[lane] > most ? a[lane] : most;
  return most;
}

// e^x to 1e-7 of its value: 2^n * e^r with |r| <= ln 2 / 2 and a polynomial of degree 7; 0 below -87
INLINE Floats exponential(Floats x) {
  const Floats clamped = larger(x, splat(-87.f));
  const Floats high = clamped < 88.f ? clamped : splat(88.f);
  const Ints n = nearest(high * 1.44269504f);
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = fused(whole, splat(2.12194440e-4f), fused(whole, splat(-0.693359375f), high));
  Floats power = splat(1.f / 5040);
  for (float term : {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, .5f, 1.f, 1.f}) power = fused(power, r, splat(term));
  const Floats scaled = power * (Floats)((n + 127) << 23);
  return x < -87.f ? Floats{} : x == x ? scaled : x;  // not a number stays none
}

INLINE Floats sigmoid(Floats x) {
  const Floats small = exponential(-magnitude(x));  // never overflows
  return (x >= 0.f ? splat(1.f) : small) / (1.f + small);
}

// the hyperbolic tangent to 3 units in the last place: x P(x^2) / Q(x^2) between -7.9 and 7.9, beyond which it is 1
// (the rational function of Eigen), and x near 0
INLINE Floats hyperbolic_tangent(Floats x) {
  Floats clamped = larger(x, splat(-7.9053111f));
  clamped = clamped < 7.9053111f ? clamped : splat(7.9053111f);
  const Floats square = clamped * clamped;
  Floats p = splat(-2.76076847742355e-16f), q = splat(1.19825839466702e-06f);
  for (float term : {2.00018790482477e-13f, -8.60467152213735e-11f, 5.12229709037114e-08f, 1.48572235717979e-05f,
                     6.37261928875436e-04f, 4.89352455891786e-03f})
    p = fused(p, square, splat(term));
  for (float term : {1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f})
    q = fused(q, square, splat(term));
  return x == x ? (magnitude(x) < 0.0004f ? x : clamped * p / q) : x;  // not a number stays none
}

// the error function to 1e-6: x P(x^2) / Q(x^2) between -4 and 4 (the rational function of Eigen)
INLINE Floats error_function(Floats x) {
  x = larger(x, splat(-4.f));
  x = x < 4.f ? x : splat(4.f);
  const Floats square = x * x;
  Floats p = splat(-2.72614225801306e-10f), q = splat(-1.45660718464996e-05f);
  for (float term : {2.77068142495902e-08f, -2.10102402082508e-06f, -5.69250639462346e-05f, -7.34990630326855e-04f,
                     -2.95459980854025e-03f, -1.60960333262415e-02f})
    p = fused(p, square, splat(term));
  for (float term : {-2.13374055278905e-04f, -1.68282697438203e-03f, -7.37332916720468e-03f, -1.42647390514189e-02f})
    q = fused(q, square, splat(term));
  return x * p / q;
}

// bfloat16 is the upper half of a float32
INLINE float widened(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float number;
  memcpy(&number, &bits, 4);
  return number;
}
typedef uint16_t Halves __attribute__((vector_size(WIDTH / 2)));
INLINE Halves rounded(Floats numbers) {  // ties to even; NaN stays NaN
  typedef uint32_t Bits __attribute__((vector_size(WIDTH)));
  const Bits bits = (Bits)numbers;
  const Bits upper = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector((Bits)(numbers == numbers ? (Ints)upper : splat(0x7fc0)), Halves);
}
INLINE uint16_t rounded(float number) { return rounded(splat(number))[0]; }

}  // namespace drafttree
