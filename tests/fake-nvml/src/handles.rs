//! Handles: numbers in the form of pointers, never dereferenced.
//!
//! kind (4 bits) | generation (20) | slot of the GPU (12) | GPU instance (12) | compute instance (12). Re-created
//! instances with the same ids get the same handle, as with the driver.

use std::ptr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    MigDevice { gpu_instance: u32, compute_instance: u32 },
    GpuInstance { gpu_instance: u32 },
}

impl Handle {
    pub fn device(generation: u64, slot: u32) -> Self {
        Self((1 << 60) | ((generation & 0xF_FFFF) << 36) | (u64::from(slot & 0xFFF) << 24))
    }

    pub fn mig_device(self, gpu_instance: u32, compute_instance: u32) -> Self {
        self.with(2, gpu_instance, compute_instance)
    }

    pub fn gpu_instance(self, gpu_instance: u32) -> Self {
        self.with(3, gpu_instance, 0)
    }

    /// The handle of the GPU itself.
    pub fn parent(self) -> Self {
        self.with(1, 0, 0)
    }

    fn with(self, kind: u64, gpu_instance: u32, compute_instance: u32) -> Self {
        let place = self.0 & 0x0FFF_FFFF_FF00_0000;
        Self((kind << 60) | place | (u64::from(gpu_instance & 0xFFF) << 12) | u64::from(compute_instance & 0xFFF))
    }

    pub fn kind(self) -> Option<Kind> {
        let gpu_instance = (self.0 >> 12) as u32 & 0xFFF;
        match self.0 >> 60 {
            1 => Some(Kind::Device),
            2 => Some(Kind::MigDevice { gpu_instance, compute_instance: self.0 as u32 & 0xFFF }),
            3 => Some(Kind::GpuInstance { gpu_instance }),
            _ => None,
        }
    }

    pub fn generation(self) -> u64 {
        (self.0 >> 36) & 0xF_FFFF
    }

    pub fn slot(self) -> u32 {
        (self.0 >> 24) as u32 & 0xFFF
    }

    pub fn from_pointer<T>(pointer: *mut T) -> Self {
        Self(pointer.addr() as u64)
    }

    pub fn pointer<T>(self) -> *mut T {
        ptr::without_provenance_mut(self.0 as usize)
    }
}
