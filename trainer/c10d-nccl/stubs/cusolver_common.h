#pragma once
// Names of types that ATen/cuda/CUDAContext.h wants; nothing here is called.
typedef int cusolverStatus_t;
