// The schedule of a matrix product, to read: `lowbit tune --explain`.
#include "drivers/gemm/schedule.h"

#include "base/arch.h"
#include "base/cpu_model.h"
#include "bindings/bindings.h"
#include "drivers/gemm/packed_matrix.h"

namespace lowbit {
namespace {

GemmSchedule int8_schedule(int64_t m, int64_t n, int64_t k, int64_t threads) {
  product_of({m, n, k}, "m, n, k");
  if (m < 1 || n < 1 || k < 1 || threads < 1) throw InvalidProblem("m, n, k, threads: expected at least 1 each");
  GemmProblem p{};
  p.m = m, p.n = n, p.k = k, p.threads = threads, p.kernel = gemm_rows(active_isa()).data();
  p.quads = PackedMatrix::quads_of(k), p.k_block = PackedMatrix::k_block_of(p.quads, cpu_model());
  p.a_is_signed = true, p.a_stride = k, p.result = Result::f32, p.out_stride = n;
  return schedule_gemm(p, cpu_model());
}

}  // namespace

void bind_schedule(nb::module_& m) {
  nb::class_<CpuModel>(m, "CpuModel", "What schedules assume of this CPU. Sizes are bytes; 0: not known.")
      .def_ro("l1", &CpuModel::l1)
      .def_ro("l2", &CpuModel::l2)
      .def_ro("l3", &CpuModel::l3)
      .def_ro("line", &CpuModel::line)
      .def_ro("dot_ports", &CpuModel::dot_ports, "Full-width dot products that start per cycle.")
      .def_ro("l1_sets", &CpuModel::l1_sets)
      .def_ro("l1_written_ways", &CpuModel::l1_written_ways)
      .def_ro("task_rows", &CpuModel::task_rows)
      .def_ro("task_panels", &CpuModel::task_panels)
      .def_ro("k_block", &CpuModel::k_block, "Quads of k.")
      .def_ro("few_rows", &CpuModel::few_rows)
      .def_ro("short_k", &CpuModel::short_k, "Quads of k.")
      .def_ro("thread_work", &CpuModel::thread_work, "Multiply-adds that are worth a thread.")
      .def_ro("shared_b", &CpuModel::shared_b)
      .def_ro("staging", &CpuModel::staging);
  m.def("cpu_model", &cpu_model, nb::rv_policy::reference, "The model of this CPU.");

  bind_enum<TileOrder>(m, "TileOrder", "What consecutive tasks share.", {"by_columns", "by_rows"});
  bind_enum<RowAccess>(m, "RowAccess", "Where the micro-kernel reads the rows of a.",
                       {"in_place", "packed_per_task", "packed_once", "image_lines"});
  nb::class_<GemmSchedule>(m, "GemmSchedule", "How a matrix product is cut into tasks.")
      .def_prop_ro("kernel", [](const GemmSchedule& s) { return std::string(s.problem.kernel->method); })
      .def_prop_ro("tile_rows", [](const GemmSchedule& s) { return s.problem.kernel->rows; })
      .def_ro("threads", &GemmSchedule::threads, "Threads that the work is worth.")
      .def_ro("order", &GemmSchedule::order)
      .def_ro("row_tasks", &GemmSchedule::row_tasks)
      .def_ro("panel_tasks", &GemmSchedule::panel_tasks)
      .def_ro("task_rows", &GemmSchedule::task_rows)
      .def_ro("task_panels", &GemmSchedule::task_panels)
      .def_prop_ro("panel_columns", [](const GemmSchedule&) { return kGemmCols; })
      .def_prop_ro(
          "k_block", [](const GemmSchedule& s) { return s.problem.k_block * 4; }, "Elements of k.")
      .def_prop_ro("k_blocks", [](const GemmSchedule& s) { return ceil_div(s.problem.quads, s.problem.k_block); })
      .def_ro("rows", &GemmSchedule::rows)
      .def_ro("packed_stride", &GemmSchedule::packed_stride)
      .def_ro("panels_at_once", &GemmSchedule::panels_at_once)
      .def_ro("rows_per_call", &GemmSchedule::rows_per_call)
      .def_ro("paired", &GemmSchedule::paired, "Whether the micro-kernel takes two panels at a time.")
      .def_ro("in_place", &GemmSchedule::in_place, "Whether accumulators are the result.")
      .def_prop_ro("scratch_bytes", [](const GemmSchedule& s) { return s.scratch.bytes(); });
  m.def("int8_schedule", &int8_schedule, "m"_a, "n"_a, "k"_a, "threads"_a,
        "The schedule of a linear layer with int8 weights: s8 rows [m, k] by weights [n, k] to f32.");
}

}  // namespace lowbit
