// Memory for weights and for what a pass keeps: on cache lines, and in large pages where the system has them.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>
#if defined(__linux__)
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
  ~Buffer() { free(data_); }

  // At least so many bytes; what was there is lost where it has to move.
  template <class T>
  T* reserve(size_t count) {
    size_t bytes = count * sizeof(T);
    if (bytes > size_) {
      free(data_);
      data_ = nullptr;  // whatever happens before there is new memory, a fork included
      const size_t page = bytes >= LARGE ? LARGE : 64;
      size_ = 0;
      bytes = (bytes + page - 1) / page * page;
      data_ = aligned_alloc(page, bytes);
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
#if defined(__linux__)
      if (page == LARGE) madvise(data_, size_, MADV_HUGEPAGE);
#endif
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
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
};

}  // namespace drafttree
