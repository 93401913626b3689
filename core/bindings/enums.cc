// The core's enums, and its errors, as Python sees them.
#include "base/granularity.h"
#include "base/types.h"
#include "bindings/bindings.h"
#include "bindings/errors.h"

namespace nb = nanobind;

namespace lowbit {

void bind_errors(nb::module_&) {
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

void bind_enums(nb::module_& m) {
  nb::enum_<Element>(m, "Element", "The type of float data.")
      .value("f32", Element::f32)
      .value("f64", Element::f64)
      .value("f16", Element::f16)
      .value("bf16", Element::bf16);
  nb::enum_<Code>(m, "Code", "The type of codes. Those below 8 bits are packed, the first in the low bits.")
      .value("s8", Code::s8)
      .value("u8", Code::u8)
      .value("s16", Code::s16)
      .value("u16", Code::u16)
      .value("s4", Code::s4)
      .value("u4", Code::u4)
      .value("s2", Code::s2)
      .value("u2", Code::u2)
      .value("b1", Code::b1);
  nb::enum_<GranularityKind>(m, "GranularityKind", "Which elements share a scale.")
      .value("tensor", GranularityKind::tensor)
      .value("channel", GranularityKind::channel)
      .value("group", GranularityKind::group);
}

}  // namespace lowbit
