// Graphs: the work that a stream was asked for while it was captured, to be asked for again. A captured stream cannot be waited
// for.
#include <memory>

#include "stream.hpp"

namespace driver {
namespace {

using Graph = std::vector<std::function<Result()>>;

std::map<void*, std::shared_ptr<Graph>> graphs, executables;

}  // namespace
}  // namespace driver

using namespace driver;

CUDA_API Result cuStreamBeginCapture_v2(void* handle, int mode) {
    DRIVER_CALL(context);
    auto stream = stream_of(call.device(), handle);
    if (stream == nullptr) return call(kInvalidHandle);
    if (mode < 0 || mode > 2 || stream->is_captured) return call(kInvalidValue);
    stream->is_captured = true;
    return kSuccess;
}

CUDA_API Result cuStreamEndCapture(void* handle, void** to) {
    DRIVER_CALL(context);
    auto stream = stream_of(call.device(), handle);
    if (stream == nullptr) return call(kInvalidHandle);
    if (to == nullptr || !stream->is_captured) return call(kInvalidValue);
    stream->is_captured = false;
    auto graph = std::make_shared<Graph>(std::move(stream->captured));
    stream->captured.clear();
    graphs[*to = graph.get()] = graph;
    return kSuccess;
}

CUDA_API Result cuGraphDestroy(void* graph) {
    DRIVER_CALL(context);
    return call(graphs.erase(graph) == 1 ? kSuccess : kInvalidValue);
}

CUDA_API Result cuGraphInstantiateWithFlags(void** to, void* graph, unsigned long long flags) {
    DRIVER_CALL(context);
    auto found = graphs.find(graph);
    if (to == nullptr || found == graphs.end() || flags != 0) return call(kInvalidValue);
    auto executable = std::make_shared<Graph>(*found->second);
    executables[*to = executable.get()] = executable;
    return kSuccess;
}

CUDA_API Result cuGraphExecDestroy(void* executable) {
    DRIVER_CALL(context);
    return call(executables.erase(executable) == 1 ? kSuccess : kInvalidValue);
}

CUDA_API Result cuGraphLaunch(void* executable, void* handle) {
    DRIVER_CALL(context);
    auto found = executables.find(executable);
    auto stream = stream_of(call.device(), handle);
    if (found == executables.end() || stream == nullptr) return call(kInvalidValue);
    for (const auto& what : *found->second) ask(call.device(), *stream, what);
    return kSuccess;
}
