// The core's enums, and its errors, as Python sees them.
#include "base/granularity.h"
#include "base/types.h"
#include "bindings/bindings.h"

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
  bind_enum<Element>(m, "Element", "The type of float data.", kElementNames);
  bind_enum<Code>(m, "Code", "The type of codes. Those below 8 bits are packed, the first in the low bits.",
                  kCodeNames);
  bind_enum<GranularityKind>(m, "GranularityKind", "Which elements share a scale.", {"tensor", "channel", "group"});
}

}  // namespace lowbit
