//! The exported C functions, by area. Each names what it needs of the machine and writes it out; the gate does the
//! rest.

mod health;
mod identity;
mod links;
mod load;
mod mig;
mod processes;
mod system;

/// Exports functions on a device. The closure's argument is the `Target`, its end an `Answer`.
macro_rules! on_device {
    ($($name:ident($($argument:ident: $kind:ty),*) |$target:ident| $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(
            device: nvml_wrapper_sys::bindings::nvmlDevice_t,
            $($argument: $kind),*
        ) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            let numbers: &[Option<std::ffi::c_uint>] = &[$($crate::record::Argument::number(&$argument)),*];
            let call = stringify!($name);
            $crate::gate::on_device(call, numbers, device, |$target: &$crate::gate::Target| $body)
        }
    )*};
}
pub(crate) use on_device;
