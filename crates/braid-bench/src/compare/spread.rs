//! Medians and spread.

/// Values of several repeats of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median; for an even number of values, the mean of the two in the middle.
    pub median: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Number of values.
    pub count: usize,
}

impl Spread {
    /// Returns the spread of some values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[half - 1], values[half])
        } else {
            values[half]
        };
        Some(Spread {
            median,
            min,
            max,
            count: values.len(),
        })
    }

    /// Returns whether the two ranges overlap.
    #[must_use]
    pub fn overlaps(&self, other: &Spread) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_bounds() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(of(&[]), None);
        let spread = |median, min, max, count| {
            Some(Spread {
                median,
                min,
                max,
                count,
            })
        };
        assert_eq!(of(&[7.0]), spread(7.0, 7.0, 7.0, 1));
        assert_eq!(of(&[9.0, 1.0, 5.0]), spread(5.0, 1.0, 9.0, 3));
        assert_eq!(of(&[4.0, 1.0, 2.0, 100.0]), spread(3.0, 1.0, 100.0, 4));
        let [a, b, c] = [[1.0, 3.0], [3.0, 4.0], [3.5, 9.0]].map(|v| of(&v).unwrap());
        assert!(a.overlaps(&b) && b.overlaps(&a) && b.overlaps(&c) && !a.overlaps(&c));
    }
}
