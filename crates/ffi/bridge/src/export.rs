//! Exports functions under the names and symbol versions of the C library.

/// The instruction that jumps to `{function}`.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

/// The instruction that jumps to `{function}`.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// Exports functions under the names of the C library. Each name is a jump to its function: a symbol that Rust exports
/// itself would lack its symbol version. A function without a given name has the name of the C library already.
#[macro_export]
macro_rules! export {
    ($($function:ident,)*) => {
        $($crate::export!(@ stringify!($function), $function);)*
    };
    ($($($name:literal)|+ => $function:path,)*) => {
        $($($crate::export!(@ $name, $function);)+)*
    };
    (@ $name:expr, $function:path) => {
        core::arch::global_asm!(
            ".pushsection .text.exports,\"ax\",@progbits",
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            $crate::jump!(),
            concat!(".size ", $name, ", .-", $name),
            ".popsection",
            function = sym $function,
        );
    };
}
