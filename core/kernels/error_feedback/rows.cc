#include "kernels/error_feedback/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<FeedbackRow> LOWBIT_ROWS(error_feedback) = FeedbackRows<Vector>::rows;
}  // namespace lowbit
