//! Enums that list their values.

/// Declares an enum and `ALL`, its values in the order of declaration. If each value has a text, the named method returns it.
macro_rules! listed {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident $(= $number:literal)?,)+
    }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$value_meta])* $value $(= $number)?,)+
        }

        impl $name {
            /// All values, in the order of their numbers.
            pub const ALL: [$name; [$($name::$value),+].len()] = [$($name::$value),+];
        }
    };
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident $(= $number:literal)? => $text:literal,)+
    } $(#[$method_meta:meta])* fn $method:ident) => {
        $crate::listed::listed! {
            $(#[$meta])* pub enum $name { $($(#[$value_meta])* $value $(= $number)?,)+ }
        }

        impl $name {
            $(#[$method_meta])*
            pub const fn $method(self) -> &'static str {
                match self {
                    $($name::$value => $text,)+
                }
            }
        }
    };
}
pub(crate) use listed;
