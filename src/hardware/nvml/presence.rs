//! Whether the driver library is in the process, or a thread is inside the loader for it.

use std::sync::atomic::{AtomicUsize, Ordering};

static PRESENT: AtomicUsize = AtomicUsize::new(0);
static IN_LOADER: AtomicUsize = AtomicUsize::new(0);

/// From before a library is loaded until it is unloaded.
pub struct Presence(());

impl Presence {
    /// Called before the loader.
    pub fn begin() -> Self {
        PRESENT.fetch_add(1, Ordering::Relaxed);
        IN_LOADER.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    pub fn is_loaded(&self) {
        IN_LOADER.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn is_being_unloaded(&self) {
        IN_LOADER.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        IN_LOADER.fetch_sub(1, Ordering::Relaxed);
        PRESENT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread loads or unloads a driver library.
#[must_use]
pub fn is_loading() -> bool {
    IN_LOADER.load(Ordering::Relaxed) > 0
}

/// A driver library is loaded, or is being loaded or unloaded.
#[must_use]
pub fn is_present() -> bool {
    PRESENT.load(Ordering::Relaxed) > 0
}

/// Ends the process at once. A usual exit waits for the loader's lock and runs the driver library's exit handlers, both
/// of which block without limit in a driver that hangs.
pub fn end_process(code: u8) -> ! {
    // SAFETY: as POSIX declares it; it takes a number and touches no memory.
    unsafe extern "C" {
        safe fn _exit(status: std::ffi::c_int) -> !;
    }
    _exit(code.into())
}
