#pragma once
// What the files of the shim share: errors as messages, and handles as the objects behind them. The NCCL plugin includes
// it too, which knows no `cxx`.
#include <ATen/ATen.h>

#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace forebay {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using std::chrono::milliseconds;

// The first letter of a message says what threw it, for src/error.rs to tell whose fault it is: the connection to
// another process or to the store, a backend (NCCL), or anything else.
constexpr char kNetwork = 'P', kBackend = 'N', kOther = 'O';

// Runs `body`; an exception becomes a message for `fail`.
template <class Body, class Fail>
void told(Body&& body, Fail&& fail) {
  auto tell = [&](char thrower, const char* text) { fail((thrower + std::string(text)).c_str()); };
  try {
    body();
  } catch (const c10::DistNetworkError& error) {
    tell(kNetwork, error.what_without_backtrace());
  } catch (const c10::DistStoreError& error) {
    tell(kNetwork, error.what_without_backtrace());
  } catch (const c10::DistBackendError& error) {
    tell(kBackend, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    tell(kOther, error.what_without_backtrace());
  } catch (const std::exception& error) {
    tell(kOther, error.what());
  } catch (...) {
    tell(kOther, "an unknown C++ exception");
  }
}

// The same with a message from strdup, or null.
template <class Body>
char* guard(Body&& body) {
  char* message = nullptr;
  told(body, [&](const char* text) { message = strdup(text); });
  return message;
}

}  // namespace forebay
