#pragma once
// Names of types that ATen/cuda/CUDAContext.h wants; nothing here is called.
typedef struct cusparseContext* cusparseHandle_t;
typedef int cusparseStatus_t;
