#include "base/granularity.h"

#include "bindings/bindings.h"
#include "bindings/shapes.h"

namespace lowbit {

void bind_granularity(nb::module_& m) {
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

}  // namespace lowbit
