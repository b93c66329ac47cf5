//! Macros for repeated code: setters of builders, and `Debug`.

/// Methods of a builder: each changes one setting.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) |$builder:ident| $change:expr;)+) => {
        $($(#[$doc])*
        pub fn $name(mut self $(, $arg: $type)*) -> Self {
            let $builder = &mut self;
            $change;
            self
        })+
    };
}
pub(crate) use setters;

/// `Debug` as a format string and its arguments.
macro_rules! debug {
    ($type:ty $(where $param:ident: $bound:path)?, |$this:ident| $($format:tt)+) => {
        impl$(<$param: $bound>)? std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                write!(f, $($format)+)
            }
        }
    };
}
pub(crate) use debug;
