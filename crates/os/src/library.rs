//! Functions of a library that is found at run time, and may be missing.

use std::ffi::{CStr, c_void};

/// The address of a symbol.
///
/// # Safety
/// `library` is a handle of `dlopen`.
pub unsafe fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: as the caller promises; the name ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Declares a structure of functions that return an `int`. `of` finds them in a library, or returns `None` if one is missing.
///
/// # Safety
/// `of` must get a handle of `dlopen` that stays open, and the types must be those of the library's header.
#[macro_export]
macro_rules! library_functions {
    ($(#[$about:meta])* $visible:vis struct $Library:ident {
        $($name:ident = $symbol:literal ($($argument:ty),*);)*
    }) => {
        $(#[$about])*
        $visible struct $Library {
            $($visible $name: unsafe extern "C" fn($($argument),*) -> ::std::ffi::c_int,)*
        }

        impl $Library {
            /// # Safety
            /// `library` stays loaded, and its header declares the functions with these types.
            unsafe fn of(library: *mut ::std::ffi::c_void) -> Option<$Library> {
                // SAFETY: as the caller promises.
                Some(unsafe {
                    $Library {
                        $($name: ::std::mem::transmute::<
                            *mut ::std::ffi::c_void,
                            unsafe extern "C" fn($($argument),*) -> ::std::ffi::c_int,
                        >($crate::library::symbol(library, $symbol)?),)*
                    }
                })
            }
        }
    };
}
