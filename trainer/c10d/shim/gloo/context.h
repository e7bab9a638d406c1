#pragma once
// ProcessGroupGloo.hpp includes five gloo headers that libtorch does not ship. These declarations stand in for
// them: only pointers to these types pass through here; nothing of gloo is constructed, subclassed or called on
// this side (Options::create_default makes the device inside libtorch), so their layout does not matter.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
};

namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace transport

namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};
}  // namespace rendezvous

}  // namespace gloo
