// Arrays as parameters of native functions: memory lent by a Python object through the buffer protocol.
//
//   Array<const float>   a C-contiguous, aligned float32 array; Array<float> must also be writable
//   Array<const void>    a C-contiguous array of any element type; Array<void> must also be writable
//   std::optional<...>   the same, or None
//
// nb::ndarray would do as well, but imports NumPy arrays through DLPack, which takes three times as long.
// The memory stays lent, and its size fixed, for as long as the Array lives.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lowbit {

// Becomes lowbit.InvalidProblem.
struct InvalidProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void refuse(const char* name, const std::string& why) {
  throw nanobind::value_error((std::string(name) + ": " + why).c_str());
}

// An argument that a plan takes only if it matches the description of Buffer::exactly. Others are no error.
struct Candidate {
  PyObject* object = nullptr;
};
struct NumbersCandidate : Candidate {};  // or a number

// The address of contiguous memory whose size and type the caller vouches for. Viewing a torch tensor as an array takes
// longer than a small call.
using Address = uintptr_t;
template <class T = void>
T* memory_at(Address address) {
  return reinterpret_cast<T*>(address);
}

struct Real {};  // as an element type: float32 or float64

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept : view_(other.view_), held_(std::exchange(other.held_, false)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(view_, other.view_);
    std::swap(held_, other.held_);
    return *this;
  }
  ~Buffer() {
    if (held_) PyBuffer_Release(&view_);
  }

  // Borrows the memory of `object`; false, with no Python error set, where it cannot be had like this.
  bool borrow(nanobind::handle object, int flags) noexcept {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
      PyErr_Clear();
      return false;
    }
    return held_ = true;
  }

  // The candidate's memory, or none and no error unless it is an array of NumPy's own type (a masked array would lose
  // its mask), C-contiguous, aligned, of this struct-module format and shape. Format 0 is not compared: some types of
  // 16 bits have none.
  static Buffer exactly(Candidate array, char format, const std::vector<int64_t>& shape, bool writable) {
    Buffer b;
    if (std::strcmp(Py_TYPE(array.object)->tp_name, "numpy.ndarray") != 0) return b;
    const int flags = (format == 0 ? 0 : PyBUF_FORMAT) | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (!b.borrow(array.object, flags)) return b;
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
  const Py_buffer& view() const { return view_; }

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
    if (shares(other))
      throw InvalidProblem(std::string(name) + ": shares memory with " + operand + "; expected memory of its own");
    return *this;
  }

  // Refuses anything but exactly `expected` bytes. The Python layer has checked sizes already.
  const Buffer& require(int64_t expected, const char* name) const {
    if (bytes() != expected)
      refuse(name, "expected " + std::to_string(expected) + " bytes, got " + std::to_string(bytes()));
    return *this;
  }

 private:
  Py_buffer view_ = {};
  bool held_ = false;
};

// The struct-module format of an element type, and its name in stubs.
template <class T>
struct ElementType;
#define ELEMENT_TYPE(type, code, stub)                                                           \
  template <>                                                                                    \
  struct ElementType<type> {                                                                     \
    static constexpr char format = code;                                                         \
    static constexpr auto name = nanobind::detail::const_name("numpy.typing.NDArray[" stub "]"); \
  };
ELEMENT_TYPE(float, 'f', "numpy.float32")
ELEMENT_TYPE(double, 'd', "numpy.float64")
ELEMENT_TYPE(int8_t, 'b', "numpy.int8")
ELEMENT_TYPE(uint8_t, 'B', "numpy.uint8")
ELEMENT_TYPE(int32_t, 'i', "numpy.int32")
ELEMENT_TYPE(uint32_t, 'I', "numpy.uint32")
ELEMENT_TYPE(int64_t, 'l', "numpy.int64")
ELEMENT_TYPE(uint64_t, 'L', "numpy.uint64")
ELEMENT_TYPE(Real, 0, "numpy.floating[typing.Any]")
ELEMENT_TYPE(void, 0, "typing.Any")
#undef ELEMENT_TYPE

template <class T>
class Array : public Buffer {
 public:
  using Element = std::remove_const_t<T>;
  T* data() const
    requires(!std::is_same_v<Element, Real>)
  {
    return as<T>();
  }
  int64_t size() const
    requires(!std::is_void_v<T> && !std::is_same_v<Element, Real>)
  {
    return bytes() / static_cast<int64_t>(sizeof(T));
  }

  bool borrow_typed(nanobind::handle object) noexcept {
    constexpr int access = std::is_const_v<T> ? 0 : PyBUF_WRITABLE;
    if constexpr (std::is_void_v<T>) {
      return borrow(object, access | PyBUF_ND);
    } else {
      if (!borrow(object, access | PyBUF_ND | PyBUF_FORMAT)) return false;
      const char* format = view().format;
      return format != nullptr && is_format(format[0]) && format[1] == '\0' &&
             reinterpret_cast<uintptr_t>(view().buf) % static_cast<uintptr_t>(view().itemsize) == 0;
    }
  }

 private:
  static bool is_format(char found) {  // "l" and "q" may be the same type
    if constexpr (std::is_same_v<Element, Real>) {
      return found == 'f' || found == 'd';
    } else {
      constexpr char wanted = ElementType<Element>::format;
      return found == wanted || (wanted == 'l' && found == 'q') || (wanted == 'L' && found == 'Q');
    }
  }
};

// Memory of an optional array, or null.
template <class T>
T* data_of(const std::optional<Array<T>>& array) {
  return array ? array->data() : nullptr;
}
template <class T>
const Buffer& buffer_of(const std::optional<Array<T>>& array) {
  static const Buffer none;
  return array ? *array : none;
}
template <class T>
void require(const std::optional<Array<T>>& array, int64_t bytes, const char* name) {
  if (array) array->require(bytes, name);
}

struct Named {
  const Buffer& memory;
  const char* name;
};

// Refuses results that share memory with each other or with what is read.
inline void require_all_apart(std::initializer_list<Named> results, std::initializer_list<Named> operands) {
  for (const Named* result = results.begin(); result != results.end(); ++result) {
    for (const Named& o : operands) result->memory.require_apart(result->name, o.memory, o.name);
    for (const Named* r = results.begin(); r != result; ++r)
      result->memory.require_apart(result->name, r->memory, r->name);
  }
}

}  // namespace lowbit

namespace nanobind::detail {

template <class T>
struct type_caster<lowbit::Array<T>> {
  NB_TYPE_CASTER(lowbit::Array<T>, lowbit::ElementType<std::remove_const_t<T>>::name)
  bool from_python(handle object, uint8_t, cleanup_list*) noexcept { return value.borrow_typed(object); }
};

#define CANDIDATE(type, stub)                                          \
  template <>                                                          \
  struct type_caster<lowbit::type> {                                   \
    NB_TYPE_CASTER(lowbit::type, const_name("numpy.typing." stub))     \
    bool from_python(handle object, uint8_t, cleanup_list*) noexcept { \
      value.object = object.ptr();                                     \
      return true;                                                     \
    }                                                                  \
  };
CANDIDATE(Candidate, "NDArray[typing.Any]")
CANDIDATE(NumbersCandidate, "ArrayLike")
#undef CANDIDATE

}  // namespace nanobind::detail
