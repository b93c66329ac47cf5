//! Roots and the logarithm from the four basic operations only.
//!
//! The functions of the C library differ between machines in the last bit; these do not.

/// Square root by Newton's method, exact to the last two bits. Zero for arguments that are not positive.
pub fn sqrt(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return 0.0;
    }
    // Halving the exponent gives a start within 50 %; each step doubles the number of correct bits.
    let mut root = f64::from_bits((x.to_bits() >> 1) + (1023 << 51));
    for _ in 0..5 {
        root = 0.5 * (root + x / root);
    }
    root
}

/// Cube root by Newton's method. Zero for arguments that are not positive.
pub fn cbrt(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return 0.0;
    }
    let mut root = f64::from_bits(x.to_bits() / 3 + (1023 << 52) / 3 * 2);
    for _ in 0..6 {
        root = (2.0 * root + x / (root * root)) / 3.0;
    }
    root
}

/// Natural logarithm of a positive normal number, with an error below 1e-15 of the result or of 1.
pub fn ln(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return f64::NEG_INFINITY;
    }
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m − 1)/(m + 1)), a series in a number below 0.172.
    let y = (mantissa - 1.0) / (mantissa + 1.0);
    let square = y * y;
    let (mut power, mut sum) = (y, 0.0);
    for n in 0..12 {
        sum += power / f64::from(2 * n + 1);
        power *= square;
    }
    2.0 * sum + exponent as f64 * core::f64::consts::LN_2
}

/// `base` to a whole power, by squaring.
pub(super) fn powi(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_agree_with_the_c_library_to_1e_14() {
        let mut x = 1e-12;
        while x < 1e15 {
            assert!((sqrt(x) / x.sqrt() - 1.0).abs() < 1e-14, "sqrt {x}");
            assert!((cbrt(x) / x.cbrt() - 1.0).abs() < 1e-14, "cbrt {x}");
            assert!((ln(x) - x.ln()).abs() < 1e-14 * x.ln().abs().max(1.0), "ln {x}");
            x *= 1.37;
        }
        assert_eq!((sqrt(0.0), cbrt(-1.0), sqrt(f64::NAN)), (0.0, 0.0, 0.0));
        assert_eq!(powi(0.5, 10), 1.0 / 1024.0);
        assert_eq!(powi(3.0, 0), 1.0);
    }
}
