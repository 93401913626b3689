// The CPU, threads and the kernels there are.

#include "base/arch.h"
#include "base/threads.h"
#include "bindings/bindings.h"
#include "kernels/families.h"

namespace lowbit {
namespace {

// (family, isa, key, method) of every row of kernels this CPU can run.
std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows_of_kernels() {
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
  for (const KernelRow& r : kernel_rows()) rows.emplace_back(r.family, r.isa, r.key, r.method);
  return rows;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (int i = 0; i < kIsaCount; ++i)
    if (isa_available(static_cast<Isa>(i))) names.push_back(isa_name(static_cast<Isa>(i)));
  return names;
}

// Called after the ISA cap or the number of threads changed; never released, as they live as long as the interpreter.
std::vector<PyObject*>& listeners() {
  static auto* const all = new std::vector<PyObject*>();
  return *all;
}
void settings_changed() {
  for (PyObject* listener : listeners()) {
    const nb::handle function(listener);
    function();
  }
}

}  // namespace

void bind_hardware(nb::module_& m) {
  m.def("num_threads", &num_threads);
  m.def(
      "set_num_threads",
      [](int n) {
        set_num_threads(n);
        settings_changed();
      },
      "n"_a);
  m.def("usable_cpus", &usable_cpus, "CPUs this process may use: affinity and cgroup quota.");
  m.def("cpu_features", &cpu_features, "Instruction sets by name, and whether this machine offers them.");
  m.def("cpu_brand", &cpu_brand);
  m.def("active_isa", [] { return std::string(isa_name(active_isa())); }, "The ISA kernels are dispatched to.");
  m.def("available_isas", &available_isas);
  m.def("max_isa", [] { return max_isa(); });
  m.def(
      "set_max_isa",
      [](const std::string& name) {
        if (!set_max_isa(name)) throw nb::value_error(("no such ISA: " + name).c_str());
        settings_changed();
      },
      "name"_a, "Caps dispatch, as LOWBIT_MAX_ISA does; an empty name lifts the cap.");
  m.def(
      "on_settings_change",
      [](nb::typed<nb::callable, void()> function) { listeners().push_back(function.inc_ref().ptr()); }, "function"_a,
      "Has it called whenever the ISA cap or the number of threads was set.");
  m.def("kernel_rows", &rows_of_kernels, "(family, isa, key, method) of every row of kernels this CPU can run.");
}

}  // namespace lowbit
