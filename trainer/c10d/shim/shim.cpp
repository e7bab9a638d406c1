#include "shim.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <c10/util/Logging.h>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using std::chrono::milliseconds;

struct Ddp {
  GroupPtr group;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  bool find_unused;
};

// Runs `body`; whatever it throws becomes a message that Rust owns.
template <class Body>
char* guard(Body&& body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("an unknown C++ exception");
  }
}

at::Tensor& tensor(void* pointer) { return *static_cast<at::Tensor*>(pointer); }
StorePtr& store(void* pointer) { return *static_cast<StorePtr*>(pointer); }
GroupPtr& group(void* pointer) { return *static_cast<GroupPtr*>(pointer); }
Ddp& ddp(void* pointer) { return *static_cast<Ddp*>(pointer); }

// Collectives work on storage, not on the autograd graph: detach() shares the storage.
at::Tensor storage_of(void* pointer) {
  auto& value = tensor(pointer);
  TORCH_CHECK(value.defined(), "the tensor is undefined");
  return value.detach();
}

std::vector<at::Tensor> tensors(void* const* pointers, size_t count) {
  std::vector<at::Tensor> values;
  values.reserve(count);
  for (size_t i = 0; i < count; i++) {
    values.push_back(tensor(pointers[i]));
    TORCH_CHECK(values.back().defined(), "tensor ", i, " is undefined");
  }
  return values;
}

// Numbers shared with group.rs. Gloo has no AVG: it is SUM followed by a division.
constexpr int kSum = 0, kAvg = 1, kMin = 2, kMax = 3;

c10d::ReduceOp::RedOpType wire_op(int op) {
  switch (op) {
    case kSum:
    case kAvg:
      return c10d::ReduceOp::SUM;
    case kMin:
      return c10d::ReduceOp::MIN;
    case kMax:
      return c10d::ReduceOp::MAX;
  }
  TORCH_CHECK(false, "no such reduction: ", op);
}

}  // namespace

extern "C" {

void fb_free(void* memory) { free(memory); }

char* fb_init_logging() {
  return guard([] { c10::initLogging(); });
}

char* fb_store_tcp(const char* host, uint16_t port, int world, int is_master, int wait_workers, int listen_fd,
                   int64_t timeout_ms, void** out) {
  return guard([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_master;
    options.numWorkers = world;
    options.waitWorkers = wait_workers;
    options.timeout = milliseconds(timeout_ms);
    if (listen_fd >= 0) options.masterListenFd = listen_fd;
    *out = new StorePtr(c10::make_intrusive<c10d::TCPStore>(host, options));
  });
}

char* fb_store_port(void* handle, uint16_t* out) {
  return guard([&] {
    auto* tcp = dynamic_cast<c10d::TCPStore*>(store(handle).get());
    TORCH_CHECK(tcp, "not a TCP store");
    *out = tcp->getPort();
  });
}

char* fb_store_set(void* handle, const char* key, const uint8_t* data, size_t len) {
  return guard([&] { store(handle)->set(key, std::vector<uint8_t>(data, data + len)); });
}

char* fb_store_get(void* handle, const char* key, uint8_t** data, size_t* len) {
  return guard([&] {
    auto value = store(handle)->get(key);
    auto* copy = static_cast<uint8_t*>(malloc(std::max<size_t>(value.size(), 1)));
    TORCH_CHECK(copy, "out of memory");
    std::copy(value.begin(), value.end(), copy);
    *data = copy;
    *len = value.size();
  });
}

char* fb_store_wait(void* handle, const char* const* keys, size_t count, int64_t timeout_ms) {
  return guard([&] { store(handle)->wait(std::vector<std::string>(keys, keys + count), milliseconds(timeout_ms)); });
}

void fb_store_free(void* handle) { delete static_cast<StorePtr*>(handle); }

char* fb_group_gloo(void* store_handle, int rank, int world, int64_t timeout_ms, void** out) {
  return guard([&] {
    using Backend = c10d::ProcessGroup::BackendType;
    auto& shared = store(store_handle);
    auto options = c10d::ProcessGroupGloo::Options::create_default(milliseconds(timeout_ms));
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", shared), rank, world, options);
    auto made = c10::make_intrusive<c10d::ProcessGroup>(shared, rank, world);
    made->setDefaultBackend(Backend::GLOO);
    made->setBackend(c10::DeviceType::CPU, Backend::GLOO, backend);
    made->setGroupName("default");
    *out = new GroupPtr(std::move(made));
  });
}

char* fb_group_all_reduce(void* handle, void* value, int op) {
  return guard([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> values{storage_of(value)};
    TORCH_CHECK(op != kAvg || values[0].is_floating_point(), "an average wants floating point, not ",
                values[0].scalar_type());
    c10d::AllreduceOptions options;
    options.reduceOp = wire_op(op);
    group(handle)->allreduce(values, options)->wait();
    if (op == kAvg) values[0].div_(group(handle)->getSize());
  });
}

char* fb_group_broadcast(void* handle, void* value, int root) {
  return guard([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> values{storage_of(value)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group(handle)->broadcast(values, options)->wait();
  });
}

char* fb_group_all_gather(void* handle, void* value, void* const* outputs, size_t count) {
  return guard([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> inputs{storage_of(value)};
    std::vector<std::vector<at::Tensor>> gathered{tensors(outputs, count)};
    group(handle)->allgather(gathered, inputs)->wait();
  });
}

char* fb_group_barrier(void* handle) {
  return guard([&] { group(handle)->barrier()->wait(); });
}

void fb_group_free(void* handle) { delete static_cast<GroupPtr*>(handle); }

// What torch.nn.parallel.DistributedDataParallel does in its constructor.
char* fb_ddp_new(void* group_handle, void* const* parameters, size_t parameter_count, void* const* buffers,
                 size_t buffer_count, int64_t bucket_bytes, int64_t first_bucket_bytes, int find_unused,
                 int gradient_as_bucket_view, void** out) {
  return guard([&] {
    auto& shared = group(group_handle);
    auto values = tensors(parameters, parameter_count);
    TORCH_CHECK(!values.empty(), "the model has no parameters");
    for (auto& value : values) {
      TORCH_CHECK(value.is_leaf() && value.requires_grad(), "a parameter is not a leaf that requires a gradient");
    }
    c10d::verify_params_across_processes(shared, values, std::nullopt);
    {
      at::NoGradGuard no_grad;
      std::vector<at::Tensor> state;
      for (auto& value : values) state.push_back(value.detach());
      for (auto& buffer : tensors(buffers, buffer_count)) state.push_back(buffer.detach());
      c10d::broadcast_coalesced(shared, state, size_t{250} << 20, 0);
    }
    // Like Python: one bucket until the order of the gradients is known, then rebuilt in the second iteration.
    std::vector<size_t> limits{std::numeric_limits<size_t>::max() >> 1};
    if (find_unused) limits = {static_cast<size_t>(first_bucket_bytes), static_cast<size_t>(bucket_bytes)};
    std::vector<bool> sparse(parameter_count, false);
    auto assignment = std::get<0>(c10d::compute_bucket_assignment_by_size(values, limits, sparse));
    std::reverse(assignment.begin(), assignment.end());

    auto made = std::make_unique<Ddp>();
    made->group = shared;
    made->find_unused = find_unused;
    made->reducer = std::make_shared<c10d::Reducer>(
        values, assignment, shared, sparse, bucket_bytes, static_cast<bool>(find_unused),
        static_cast<bool>(gradient_as_bucket_view), std::unordered_map<size_t, std::string>{}, first_bucket_bytes,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>{});
    made->logger = std::make_shared<c10d::Logger>(made->reducer);
    made->reducer->set_logger(made->logger);
    std::vector<int> devices;
    if (values[0].is_cuda()) devices = {values[0].get_device()};
    made->logger->set_construction_data_and_log("tch", devices, devices.empty() ? -1 : devices[0], buffer_count > 0,
                                                /*has_sync_bn=*/false, /*static_graph=*/false);
    *out = made.release();
  });
}

char* fb_ddp_before_forward(void* handle) {
  return guard([&] {
    ddp(handle).logger->set_runtime_stats_and_log();
    ddp(handle).reducer->prepare_for_forward();
    ddp(handle).reducer->rebuild_buckets();
  });
}

char* fb_ddp_before_backward(void* handle, void* const* outputs, size_t count) {
  return guard([&] {
    auto used = ddp(handle).find_unused ? tensors(outputs, count) : std::vector<at::Tensor>{};
    ddp(handle).reducer->prepare_for_backward(used);
  });
}

char* fb_ddp_bucket_sizes(void* handle, int64_t* out, size_t capacity, size_t* count) {
  return guard([&] {
    auto sizes = ddp(handle).logger->get_bucket_sizes();
    std::copy_n(sizes.begin(), std::min(capacity, sizes.size()), out);
    *count = sizes.size();
  });
}

char* fb_ddp_stat(void* handle, const char* key, int64_t* out, int* found) {
  return guard([&] {
    auto data = ddp(handle).logger->get_ddp_logging_data();
    auto entry = data.ints_map.find(key);
    *found = entry != data.ints_map.end();
    if (*found) *out = entry->second;
  });
}

// The logger points into the reducer, and the reducer into the group: that order, not the members' reverse.
void fb_ddp_free(void* handle) {
  auto* owned = static_cast<Ddp*>(handle);
  owned->logger.reset();
  owned->reducer.reset();
  delete owned;
}

// torch's own zero_grad detaches the gradient, which a view into a bucket forbids.
char* fb_zero_grads(void* const* parameters, size_t count, int set_to_none) {
  return guard([&] {
    at::NoGradGuard no_grad;
    for (auto& parameter : tensors(parameters, count)) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        gradient.zero_();
      }
    }
  });
}

// On failure the owner stays with the caller; afterwards the storage drops it, with its last view.
char* fb_tensor_from_owner(void* data, const int64_t* sizes, size_t dimensions, int scalar_type, void* owner,
                           void (*drop_owner)(void*), void** out) {
  return guard([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type));
    // Without an owner first: whatever may throw for these arguments throws here, before `owner` changes hands.
    at::for_blob(data, at::IntArrayRef(sizes, dimensions)).options(options).make_tensor();
    *out = new at::Tensor(at::for_blob(data, at::IntArrayRef(sizes, dimensions))
                              .context(owner, drop_owner)
                              .options(options)
                              .make_tensor());
  });
}

}  // extern "C"
