// What every file of this folder includes; each file binds one operation.
//
// Conventions of this folder:
//   - Every type caster is included here, so that all files convert a type in the same way.
//   - Arrays are Array<T> (arrays.h), sizes are checked with product_of (sizes.h), enums are the core's own. A missing
//   array is std::optional<Array<T>>.
//   - Nothing takes more than six parameters besides self: what belongs together is a small bound struct.
//   - Work on many elements runs in without_gil (gil.h).
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"

namespace lowbit {

namespace nb = nanobind;
using namespace nb::literals;

// An enum whose members are 0, 1, ... with these names.
template <class E, size_t N>
void bind_enum(nb::module_& m, const char* type, const char* doc, const char* const (&names)[N]) {
  nb::enum_<E> bound(m, type, doc);
  for (size_t i = 0; i < N; ++i) bound.value(names[i], static_cast<E>(i));
}

// One for each file: adds what the file binds.
using Bind = void(nb::module_&);
Bind bind_quantize, bind_fake_quantize, bind_epilogue, bind_gemm, bind_linear, bind_conv, bind_elementwise, bind_binary,
    bind_sketch, bind_hardware, bind_recurrent, bind_solve;

}  // namespace lowbit
