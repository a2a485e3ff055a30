//! A captured step.

use super::device::Device;
use super::error::CudaError;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// A step of one width, captured once and launched as one.
pub struct Graph {
    device: Arc<Device>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

// SAFETY: handles of the device's context, used by one thread at a time.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `enqueue` puts on the device's stream.
    ///
    /// # Errors
    /// `enqueue` failed, or did something that cannot be captured.
    pub fn capture(device: &Arc<Device>, enqueue: impl FnOnce() -> Result<(), CudaError>) -> Result<Self, CudaError> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream; capture is ended whatever happens between.
        unsafe { result::stream::begin_capture(device.stream, mode) }.map_err(CudaError::driver("begin capture"))?;
        let done = enqueue();
        // SAFETY: as above.
        let graph = unsafe { result::stream::end_capture(device.stream) }.map_err(CudaError::driver("end capture"));
        done?;
        let graph = graph?;
        // SAFETY: a graph the driver just gave.
        let exec = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        match exec.map_err(CudaError::driver("instantiating a graph")) {
            Ok(exec) => Ok(Self { device: device.clone(), graph, exec }),
            Err(error) => {
                // SAFETY: the graph is used by nobody.
                let _ = unsafe { result::graph::destroy(graph) };
                Err(error)
            }
        }
    }

    /// Launches it.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn launch(&self) -> Result<(), CudaError> {
        // SAFETY: handles live as long as `self`.
        unsafe { result::graph::launch(self.exec, self.device.stream) }.map_err(CudaError::driver("launching a graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        let _ = self.device.wait();
        // SAFETY: no launch is under way.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}
