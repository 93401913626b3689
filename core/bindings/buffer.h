// A contiguous block of bytes lent by a Python object, held for as long as this lives.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace lowbit {

class Buffer {
 public:
  Buffer() = default;
  Buffer(nanobind::handle object, const char* name, bool writable = false) {
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
      PyErr_Clear();
      throw nanobind::type_error(
          (std::string(name) + ": expected a contiguous " + (writable ? "writable " : "") + "array of plain bytes")
              .c_str());
    }
    held_ = true;
  }
  Buffer(Buffer&& other) noexcept : view_(other.view_), held_(std::exchange(other.held_, false)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(view_, other.view_);
    std::swap(held_, other.held_);
    return *this;
  }
  ~Buffer() {
    if (held_) PyBuffer_Release(&view_);
  }

  // The array's memory if it is just what is asked for, else nothing and no error: NumPy's own array type (a masked
  // array lends its memory too, and would lose its mask), C-contiguous, aligned, of this struct-module format and
  // shape. Format 0 is not asked for: some types of 16 bits have none.
  static Buffer exactly(nanobind::handle object, char format, const std::vector<int64_t>& shape, bool writable) {
    Buffer b;
    if (std::strcmp(Py_TYPE(object.ptr())->tp_name, "numpy.ndarray") != 0) return b;
    const int flags = (format == 0 ? 0 : PyBUF_FORMAT) | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &b.view_, flags) != 0) {
      PyErr_Clear();
      return b;
    }
    b.held_ = true;
    bool same = (format == 0 ? b.view_.itemsize == 2
                             : b.view_.format != nullptr && b.view_.format[0] == format && b.view_.format[1] == '\0') &&
                b.view_.ndim == static_cast<int>(shape.size()) &&
                reinterpret_cast<uintptr_t>(b.view_.buf) % static_cast<uintptr_t>(b.view_.itemsize) == 0;
    for (size_t i = 0; same && i < shape.size(); ++i) same = b.view_.shape[i] == shape[i];
    return same ? std::move(b) : Buffer();
  }

  explicit operator bool() const { return held_; }
  int64_t bytes() const { return view_.len; }
  template <class T = void>
  T* as() const {
    return static_cast<T*>(held_ ? view_.buf : nullptr);
  }

  // Whether both have memory in common.
  bool shares(const Buffer& other) const {
    const auto begin = reinterpret_cast<uintptr_t>(as()), others = reinterpret_cast<uintptr_t>(other.as());
    return bytes() > 0 && other.bytes() > 0 && begin < others + static_cast<uintptr_t>(other.bytes()) &&
           others < begin + static_cast<uintptr_t>(bytes());
  }
  // Whether both have memory in common but begin at different places of it.
  bool overlaps(const Buffer& other) const { return as() != other.as() && shares(other); }

  // Refuses memory in common with an operand, which would be overwritten before it is read.
  const Buffer& require_apart(const char* name, const Buffer& other, const char* operand) const {
    if (shares(other)) {
      const nanobind::object type = nanobind::module_::import_("lowbit.numerics.errors").attr("InvalidProblem");
      PyErr_Format(type.ptr(), "%s: shares memory with %s; expected memory of its own", name, operand);
      throw nanobind::python_error();
    }
    return *this;
  }

  // Refuses anything but exactly `expected` bytes: the last line of defence behind the Python checks.
  const Buffer& require(int64_t expected, const char* name) const {
    if (bytes() != expected)
      throw nanobind::value_error(
          (std::string(name) + ": expected " + std::to_string(expected) + " bytes, got " + std::to_string(bytes()))
              .c_str());
    return *this;
  }

 private:
  Py_buffer view_ = {};
  bool held_ = false;
};

}  // namespace lowbit
