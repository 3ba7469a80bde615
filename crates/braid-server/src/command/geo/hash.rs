//! Positions as numbers: 26 bits each of latitude and longitude, interleaved, so that points that
//! are close mostly have numbers that are close.

/// Greatest latitude that has a number, as in Redis: the edge of the square Mercator map.
pub(super) const LATITUDE_MAX: f64 = 85.051_128_78;
pub(super) const LONGITUDE_MAX: f64 = 180.0;

/// Radius of the earth in metres, as Redis has it.
const RADIUS: f64 = 6_372_797.560_856;

/// Bits of each coordinate.
pub(super) const BITS: u32 = 26;

/// Longitude and latitude in degrees.
pub(super) type Point = (f64, f64);

/// Returns in which of `2^BITS` parts of `-max..max` a coordinate lies.
fn part(coordinate: f64, max: f64) -> u32 {
    let parts = f64::from(1u32 << BITS);
    let at = (coordinate + max) / (2.0 * max) * parts;
    at.clamp(0.0, parts - 1.0) as u32
}

/// Spreads the bits of a number to the even places.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Collects the bits at the even places.
fn collect(bits: u64) -> u32 {
    (0..32).fold(0, |number, at| {
        number | ((bits >> (2 * at) & 1) as u32) << at
    })
}

fn interleave(longitude: u32, latitude: u32) -> u64 {
    spread(latitude) | spread(longitude) << 1
}

/// Returns the number of a point, of 52 bits.
pub(super) fn encode((longitude, latitude): Point) -> u64 {
    interleave(part(longitude, LONGITUDE_MAX), part(latitude, LATITUDE_MAX))
}

/// Returns the number that a score stands for. No position has a negative or larger score, but any
/// sorted set may be read as positions: the number is that of Redis on x86-64.
pub(super) fn number_of(score: f64) -> u64 {
    const ABOVE: f64 = (u64::MAX / 2 + 1) as f64 * 2.0;
    if score < 0.0 {
        (score as i64).cast_unsigned()
    } else if score < ABOVE {
        score as u64
    } else {
        0
    }
}

/// Returns the middle of the cell that has a number.
pub(super) fn decode(number: u64) -> Point {
    let middle = |part: u32, max: f64| {
        let at = |part: f64| -max + part / f64::from(1u32 << BITS) * (2.0 * max);
        let part = f64::from(part);
        ((at(part) + at(part + 1.0)) / 2.0).clamp(-max, max)
    };
    (
        middle(collect(number >> 1), LONGITUDE_MAX),
        middle(collect(number), LATITUDE_MAX),
    )
}

/// Returns the geohash of eleven characters that other programs understand.
pub(super) fn text((longitude, latitude): Point) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
    // The standard counts latitudes up to the poles.
    let number = interleave(part(longitude, LONGITUDE_MAX), part(latitude, 90.0));
    // 52 bits are ten characters and two bits; the last character is 0, as in Redis.
    let characters = (0..10).map(|at| ALPHABET[(number >> (47 - 5 * at) & 31) as usize] as char);
    characters.chain(['0']).collect()
}

/// Returns the distance in metres on a sphere.
pub(super) fn distance(from: Point, to: Point) -> f64 {
    let [from_longitude, from_latitude, to_longitude, to_latitude] =
        [from.0, from.1, to.0, to.1].map(f64::to_radians);
    let across = ((to_longitude - from_longitude) / 2.0).sin();
    let along = ((to_latitude - from_latitude) / 2.0).sin();
    let square = along * along + from_latitude.cos() * to_latitude.cos() * across * across;
    2.0 * RADIUS * square.sqrt().min(1.0).asin()
}

/// Returns the distance in metres of two latitudes.
pub(super) fn latitude_distance(from: f64, to: f64) -> f64 {
    RADIUS * (to - from).to_radians().abs()
}

/// Returns ranges of numbers that contain every point within `radius` metres, and few others.
pub(super) fn covering((longitude, latitude): Point, radius: f64) -> Vec<std::ops::Range<u64>> {
    let angle = radius / RADIUS;
    // A little more than needed: a cell's number stands for its middle.
    let margin = 1e-4;
    let up = angle.to_degrees() + margin;
    let (south, north) = (latitude - up, latitude + up);
    let across = if south <= -90.0 || north >= 90.0 {
        // A pole is within the radius.
        LONGITUDE_MAX
    } else {
        let ratio = angle.sin() / latitude.to_radians().cos();
        if angle >= std::f64::consts::FRAC_PI_2 || ratio >= 1.0 {
            LONGITUDE_MAX
        } else {
            (ratio.asin().to_degrees() + margin).min(LONGITUDE_MAX)
        }
    };
    let (west, east) = (longitude - across, longitude + across);
    // Where the longitude begins again, the box has two parts.
    let mut spans = vec![(west.max(-LONGITUDE_MAX), east.min(LONGITUDE_MAX))];
    if west < -LONGITUDE_MAX {
        spans.push((west + 2.0 * LONGITUDE_MAX, LONGITUDE_MAX));
    }
    if east > LONGITUDE_MAX {
        spans.push((-LONGITUDE_MAX, east - 2.0 * LONGITUDE_MAX));
    }
    let (low, high) = (part(south, LATITUDE_MAX), part(north, LATITUDE_MAX));
    let mut ranges = Vec::new();
    for (from, to) in spans {
        let (left, right) = (part(from, LONGITUDE_MAX), part(to, LONGITUDE_MAX));
        // Cells as large as the box: it touches at most two in each direction.
        let size = (high - low).max(right - left).max(1);
        let shift = (32 - size.leading_zeros()).min(BITS);
        for column in left >> shift..=right >> shift {
            for row in low >> shift..=high >> shift {
                let first = interleave(column << shift, row << shift);
                ranges.push(first..first + (1 << (2 * shift)));
            }
        }
    }
    ranges.sort_by_key(|range| range.start);
    // The parts may share cells.
    let mut merged: Vec<std::ops::Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_points() {
        let palermo = (13.361389, 38.115556);
        assert_eq!(encode(palermo), 3_479_099_956_230_698);
        let decoded = decode(3_479_099_956_230_698);
        assert!(
            (decoded.0 - 13.361_389_338_970_184).abs() < 1e-12,
            "{decoded:?}"
        );
        assert!(
            (decoded.1 - 38.115_556_395_496_3).abs() < 1e-12,
            "{decoded:?}"
        );
        assert_eq!(text(decoded), "sqc8b49rny0");
        let catania = decode(encode((15.087269, 37.502669)));
        assert!((distance(decoded, catania) - 166_274.151_6).abs() < 1e-3);
    }

    #[test]
    fn every_point_within_the_radius_is_covered() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut point = || {
                (
                    (random.f64() - 0.5) * 360.0,
                    (random.f64() - 0.5) * 2.0 * LATITUDE_MAX,
                )
            };
            let (center, other) = (point(), decode(encode(point())));
            let radius = distance(center, other) * (1.0 + random.f64() * 0.01);
            let number = encode(other);
            let ranges = covering(center, radius);
            assert!(
                ranges.iter().any(|range| range.contains(&number)),
                "{center:?} {other:?} {radius}"
            );
            assert!(ranges.len() <= 8);
        }
    }
}
