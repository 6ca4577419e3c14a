//! Enums whose values are those of a label.

/// Declares such an enum, each value with its name, so that none can be left out of `ALL` or have another's place: handles
/// stand in its order, and are found by `as usize`.
macro_rules! labelled {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident = $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $value,)*
        }

        impl $name {
            /// Every value, in order.
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$value),*];

            /// Its name, in metrics and wherever else it is told.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $label,)*
                }
            }
        }
    };
}

pub(super) use labelled;
