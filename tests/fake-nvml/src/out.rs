//! The caller's memory. The C functions take these wrappers where the header has pointers; they have a pointer's
//! layout, refuse null, and hold every dereference of the crate.
//!
//! Only the C side makes them, and NVML's contract is theirs: a pointer is null or valid for what the call writes.

use std::ffi::{CStr, c_char, c_uint};

use crate::codes::{Answer, Code, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND};

/// One value to be written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller of the C function vouches for it (head of this file).
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// What the caller put there beforehand: sizes, versions, requests.
    pub fn get(self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller of the C function vouches for it (head of this file).
        Ok(unsafe { self.0.read() })
    }

    /// The address of a part of it.
    pub fn at<U>(self, offset: usize) -> Result<*mut U, Code> {
        if self.0.is_null() { Err(INVALID_ARGUMENT) } else { Ok(self.0.wrapping_byte_add(offset).cast()) }
    }

    /// The same address as another struct, for the versioned ones whose first word is the version.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// A text of the caller's.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextArgument(*const c_char);

impl TextArgument {
    pub fn get(self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller of the C function vouches for it (head of this file).
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// A text buffer, its length passed beside it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*mut c_char);

impl Text {
    pub fn put(self, text: &str, length: c_uint) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let text = latin1(text);
        if text.len() >= length as usize {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: the buffer holds `length` bytes, more than the text has (checked above), so the end mark fits too.
        unsafe {
            self.0.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// An array of the caller, whose length is separate.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Many<T>(*mut T);

impl<T: Copy> Many<T> {
    pub fn from_pointer(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn get(self, index: usize) -> T {
        // SAFETY: callers stay below the length that the C caller gave for this array.
        unsafe { self.0.add(index).read() }
    }

    pub fn put(self, index: usize, value: T) {
        // SAFETY: callers stay below the length that the C caller gave for this array.
        unsafe { self.0.add(index).write(value) }
    }

    /// NVML's list convention: `count` is the capacity on input and the number on output. Too little capacity, or no
    /// array at all, is INSUFFICIENT_SIZE with the number needed.
    pub fn put_all(self, count: Out<c_uint>, values: &[T]) -> Answer {
        let room = count.get()? as usize;
        count.put(values.len() as c_uint)?;
        if values.is_empty() {
            return Ok(());
        }
        if self.is_null() || room < values.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, value) in values.iter().enumerate() {
            self.put(index, *value);
        }
        Ok(())
    }

    /// The sample convention: no array requests the number, too small an array gets the oldest.
    pub fn put_oldest(self, count: Out<c_uint>, values: &[T]) -> Answer {
        if values.is_empty() {
            return Err(NOT_FOUND);
        }
        let given = if self.is_null() { values.len() } else { values.len().min(count.get()? as usize) };
        count.put(given as c_uint)?;
        if !self.is_null() {
            for (index, value) in values.iter().take(given).enumerate() {
                self.put(index, *value);
            }
        }
        Ok(())
    }
}

/// One byte for each character: those above 0x7f are not UTF-8, as in a damaged InfoROM.
fn latin1(text: &str) -> Vec<u8> {
    text.chars().map(|character| character as u8).collect()
}

/// Writes a text into a fixed array of a struct, cut where it ends.
pub fn fill<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (slot, byte) in array.iter_mut().take(N - 1).zip(latin1(text)) {
        *slot = byte as c_char;
    }
    array
}
