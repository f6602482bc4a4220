// The matrix instructions of x86-64 (AMX): eight registers of 16 rows of 64 bytes, of which two are multiplied and
// added to a third in 16 cycles.
#pragma once
#include <cstdint>
#if defined(__AMX_TILE__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace drafttree {

#if defined(__AMX_TILE__)
constexpr bool HAS_AMX = true;
#else
constexpr bool HAS_AMX = false;
#endif

// A thread's registers, which it uses as long as it holds this; 8 KB more to save whenever another thread gets its
// core.
class Amx {
 public:
  static constexpr int64_t ROWS = 16;
  static constexpr int64_t WORDS = 16;  // of 32 bits, in a row

#if defined(__AMX_TILE__)
  // Whether this process may use them; Linux wants to be asked.
  static bool may_run() {
    constexpr long request = 0x1023, tiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request, tiles) == 0;
  }
  Amx() { _tile_loadconfig(&SHAPES); }
  ~Amx() { _tile_release(); }

 private:
  struct alignas(64) Shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  };
  static constexpr Shapes SHAPES = {
      1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS}};
#else
  static bool may_run() { return true; }
  Amx() {}
#endif
};

}  // namespace drafttree
