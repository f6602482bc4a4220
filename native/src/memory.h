// Memory for weights and for what a pass keeps: on cache lines, and in large pages where the system has them.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <malloc.h>
#include <sys/mman.h>
#endif

namespace drafttree {

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { release(); }

  // At least so many bytes; what was there is lost where it has to move.
  template <class T>
  T* reserve(size_t count) {
    size_t bytes = count * sizeof(T);
    if (bytes > size_) {
      release();  // whatever happens before there is new memory, a fork included
      bytes = (bytes + 63) / 64 * 64;
      data_ = bytes >= LARGE ? map(bytes) : aligned_alloc(64, bytes);
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return (T*)data_;
  }
  template <class T>
  T* as() const {
    return (T*)data_;
  }
  size_t size() const { return size_; }

 private:
  static constexpr size_t LARGE = 2 << 20;
  void* data_ = nullptr;
  size_t size_ = 0;

#if defined(__linux__)
  // Not from the heap, which keeps what lies between others when it is freed. The kernel uses large pages for those
  // that are whole, so the last one is no larger than needed.
  static void* map(size_t bytes) {
    char* found = (char*)mmap(nullptr, bytes + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    const size_t before = (LARGE - (uintptr_t)found % LARGE) % LARGE;
    if (before) munmap(found, before);
    char* data = found + before;
    char* end = (char*)(((uintptr_t)data + bytes + 4095) / 4096 * 4096);
    if (end < found + bytes + LARGE) munmap(end, found + bytes + LARGE - end);
    madvise(data, bytes, MADV_HUGEPAGE);
    return data;
  }
#else
  static void* map(size_t bytes) { return aligned_alloc(64, bytes); }
#endif
  void release() {
#if defined(__linux__)
    if (size_ >= LARGE) munmap(data_, size_);
    else free(data_);
#else
    free(data_);
#endif
    data_ = nullptr, size_ = 0;
  }
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
};

// Lets the system have the heap's free pages, those between others too.
inline void trim_heap() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace drafttree
