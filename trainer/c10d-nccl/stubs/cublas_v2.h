#pragma once
// Names of types that ATen/cuda/CUDAContext.h wants; nothing here is called.
typedef struct cublasContext* cublasHandle_t;
typedef int cublasStatus_t;
