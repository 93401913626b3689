// Fake quantization and straight-through gradients over whole arrays.
#pragma once
#include "drivers/elementwise/elementwise.h"
#include "kernels/fake_quant/fake_quant.h"

namespace lowbit {

// x and dy as the operation wants them, else null; y may be either. zero must not be null.
void fake_quant(FakeOp op, const Granularity& layout, const Affine& affine, const void* x, const void* dy, void* y,
                Element element);

// fake_quant, and a bit for each element that was not clipped; where mask_fits, since threads must not share a byte.
bool mask_fits(const Granularity& layout);
void fake_quant_masked(const Granularity& layout, const Affine& affine, const void* x, void* y, uint8_t* bits,
                       Element element);
// y = dy where a bit is set, else 0.
void keep_where(const void* dy, const uint8_t* bits, void* y, int64_t n, Element element);

// dx, and the gradients of each scale and zero point in the compute type. partial: learned_workspace(layout) doubles.
// Runs are cut into blocks of kSumBlock elements, columns into bands of kBand rows; blocks and bands are added in
// order, then runs. No thread changes that. Without elements, the gradients of scales and zero points are 0.
int64_t learned_workspace(const Granularity& layout);
void fake_quant_learned(const Granularity& layout, const Affine& affine, const void* x, const void* dy, void* dx,
                        Element element, double* partial, void* ds, void* dz);

}  // namespace lowbit
