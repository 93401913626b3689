// lowbit._core: the native kernels. Types and shapes are checked by the Python layer; sizes are checked once more here.
#include "base/granularity.h"
#include "base/types.h"
#include "bindings/bindings.h"

namespace lowbit {
namespace {

void bind_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const InvalidProblem& error) {
      // Imported once, and never released: it is needed until the interpreter ends.
      static PyObject* const type =
          nb::module_::import_("lowbit.numerics.errors").attr("InvalidProblem").inc_ref().ptr();
      PyErr_SetString(type, error.what());
    }
  });
}

// What every operation is described by.
void bind_types(nb::module_& m) {
  bind_enum<Element>(m, "Element", "The type of float data.", kElementNames);
  bind_enum<Code>(m, "Code", "The type of codes. Those below 8 bits are packed, the first in the low bits.",
                  kCodeNames);
  bind_enum<GranularityKind>(m, "GranularityKind", "Which elements share a scale.", {"tensor", "channel", "group"});
  nb::class_<Granularity>(m, "Granularity", "Which elements of a contiguous [outer, axis, inner] array share a scale.")
      .def(
          "__init__",
          [](Granularity* self, GranularityKind kind, int64_t outer, int64_t axis, int64_t inner, int64_t block) {
            product_of({outer, axis, inner}, "sizes");
            new (self) Granularity{kind, outer, axis, inner, block_of(block)};
          },
          "kind"_a, "outer"_a, "axis"_a, "inner"_a, "block"_a)
      .def_prop_ro("elements", &Granularity::elements)
      .def_prop_ro("scales", &Granularity::scales);
  nb::class_<ScaledShape>(m, "ScaledShape", "The shapes of an array and of its scales, and which elements share one.")
      .def(nb::init<std::vector<int64_t>, std::vector<int64_t>, const Granularity&>(), "shape"_a, "scale_shape"_a,
           "granularity"_a);
}

}  // namespace
}  // namespace lowbit

NB_MODULE(_core, m) {
  using namespace lowbit;
  nanobind::set_leak_warnings(false);  // a module that keeps params alive is no leak, and no user's business
  m.doc() = "Native kernels of lowbit. Use the functions of the lowbit package instead.";
  bind_errors();
  bind_types(m);
  for (Bind* bind : {bind_quantize, bind_fake_quantize, bind_epilogue, bind_gemm, bind_linear, bind_conv,
                     bind_elementwise, bind_binary, bind_sketch, bind_hardware, bind_recurrent, bind_solve})
    bind(m);
}
