//! Positions on the earth, kept in sorted sets whose scores are the numbers of positions.

mod hash;

use bytes::Bytes;

use super::arguments::{Options, float, is, natural};
use super::sorted_sets::{self, Scored};
use crate::failure::{Failure, Result};
use crate::keyspace::{Collection, Data, Kind};
use crate::resp::Reply;
use hash::{LATITUDE_MAX, LONGITUDE_MAX, Point};

/// Parses a unit; returns its length in metres.
fn unit(argument: &[u8]) -> Result<f64> {
    [("M", 1.0), ("KM", 1000.0), ("FT", 0.3048), ("MI", 1609.34)]
        .into_iter()
        .find_map(|(name, metres)| is(argument, name).then_some(metres))
        .ok_or_else(|| Failure::client("ERR unsupported unit provided. please use M, KM, FT, MI"))
}

fn point(longitude: &[u8], latitude: &[u8]) -> Result<Point> {
    let (longitude, latitude) = (float(longitude)?, float(latitude)?);
    let inside = (-LONGITUDE_MAX..=LONGITUDE_MAX).contains(&longitude)
        && (-LATITUDE_MAX..=LATITUDE_MAX).contains(&latitude);
    if inside {
        Ok((longitude, latitude))
    } else {
        Err(Failure::client(format!(
            "ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}"
        )))
    }
}

fn show(distance: f64) -> Reply {
    Reply::copied(format!("{distance:.4}"))
}

fn show_point((longitude, latitude): Point) -> Reply {
    Reply::Array(vec![Reply::Double(longitude), Reply::Double(latitude)])
}

pub(super) fn geoadd(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let options = args[2..]
        .iter()
        .take_while(|word| ["NX", "XX", "CH"].iter().any(|known| is(word, known)))
        .count();
    let points = &args[2 + options..];
    if points.is_empty() || !points.len().is_multiple_of(3) {
        return Err(Failure::SYNTAX);
    }
    let mut request = args[..2 + options].to_vec();
    for triple in points.chunks_exact(3) {
        let number = hash::encode(point(&triple[0], &triple[1])?);
        request.push(number.to_string().into());
        request.push(triple[2].clone());
    }
    sorted_sets::add::zadd(data, &request)
}

/// Returns the positions of members; `None` for members that do not exist.
fn positions(data: &mut Data, key: &[u8], members: &[Bytes]) -> Result<Vec<Option<Point>>> {
    let found = data.collection(key, Kind::SortedSet)?;
    members
        .iter()
        .map(|member| match &found {
            None => Ok(None),
            Some((_, set)) => {
                let score = sorted_sets::score_of(data, set, member)?;
                Ok(score.map(|score| hash::decode(hash::number_of(score))))
            }
        })
        .collect()
}

pub(super) fn geopos(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let found = positions(data, &args[1], &args[2..])?;
    let shown = found
        .into_iter()
        .map(|point| point.map_or(Reply::NullArray, show_point));
    Ok(Reply::Array(shown.collect()))
}

pub(super) fn geohash(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let found = positions(data, &args[1], &args[2..])?;
    let shown = found
        .into_iter()
        .map(|point| point.map_or(Reply::Null, |point| Reply::copied(hash::text(point))));
    Ok(Reply::Array(shown.collect()))
}

pub(super) fn geodist(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    if args.len() > 5 {
        return Err(Failure::SYNTAX);
    }
    let metres = args.get(4).map_or(Ok(1.0), |name| unit(name))?;
    Ok(match positions(data, &args[1], &args[2..4])?[..] {
        [Some(from), Some(to)] => show(hash::distance(from, to) / metres),
        _ => Reply::Null,
    })
}

/// Where a search looks.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Radius in metres.
    Circle(f64),
    /// Width and height in metres.
    Box(f64, f64),
}

impl Shape {
    /// Returns the radius of a circle around the shape.
    fn radius(self) -> f64 {
        match self {
            Shape::Circle(radius) => radius,
            Shape::Box(width, height) => width.hypot(height) / 2.0,
        }
    }

    /// Returns the distance of a point from the middle if the point is inside.
    fn distance(self, middle: Point, point: Point) -> Option<f64> {
        let distance = hash::distance(middle, point);
        let is_inside = match self {
            Shape::Circle(radius) => distance <= radius,
            Shape::Box(width, height) => {
                hash::latitude_distance(middle.1, point.1) <= height / 2.0
                    && hash::distance((middle.0, point.1), point) <= width / 2.0
            }
        };
        is_inside.then_some(distance)
    }
}

/// What a search shows of each member.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    distance: bool,
    number: bool,
    point: bool,
}

/// A search.
struct Search<'a> {
    /// Member in the middle, if no point is given.
    member: Option<&'a Bytes>,
    middle: Option<Point>,
    shape: Option<Shape>,
    /// Metres of the unit in which distances are shown.
    metres: f64,
    from_far: bool,
    is_sorted: bool,
    count: usize,
    /// Whether any members will do, not the nearest ones.
    any: bool,
    shown: Shown,
    /// Where the result is stored, and whether with distances as scores.
    target: Option<(&'a Bytes, bool)>,
    /// What the event of the stored result is called.
    event: &'static str,
}

/// A member that a search found.
struct Hit {
    member: Bytes,
    number: u64,
    point: Point,
    /// In metres.
    distance: f64,
}

fn positive(argument: &[u8], what: &'static str) -> Result<f64> {
    let number = super::arguments::float(argument)
        .map_err(|_| Failure::client(format!("ERR need numeric {what}")))?;
    if number < 0.0 {
        return Err(Failure::client(format!("ERR {what} cannot be negative")));
    }
    Ok(number)
}

impl<'a> Search<'a> {
    fn new() -> Search<'a> {
        Search {
            member: None,
            middle: None,
            shape: None,
            metres: 1.0,
            from_far: false,
            is_sorted: false,
            count: usize::MAX,
            any: false,
            shown: Shown::default(),
            target: None,
            event: "geosearchstore",
        }
    }

    fn circle(&mut self, radius: &[u8], name: &[u8]) -> Result<()> {
        let radius = positive(radius, "radius")?;
        self.metres = unit(name)?;
        self.shape = Some(Shape::Circle(radius * self.metres));
        Ok(())
    }

    /// Parses an option that all searches have; returns whether it was one.
    fn option(&mut self, option: &[u8], options: &mut Options<'a>) -> Result<bool> {
        if is(option, "ASC") || is(option, "DESC") {
            self.is_sorted = true;
            self.from_far = is(option, "DESC");
        } else if is(option, "COUNT") {
            self.count = natural(options.value()?, "ERR COUNT must be > 0")?;
            if self.count == 0 {
                return Err(Failure::client("ERR COUNT must be > 0"));
            }
            self.any = options.take("ANY");
        } else if is(option, "WITHDIST") {
            self.shown.distance = true;
        } else if is(option, "WITHHASH") {
            self.shown.number = true;
        } else if is(option, "WITHCOORD") {
            self.shown.point = true;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Parses the options of GEOSEARCH, after its key.
    fn modern(args: &'a [Bytes], target: Option<&'a Bytes>) -> Result<Search<'a>> {
        let mut search = Search::new();
        search.target = target.map(|target| (target, false));
        let mut options = Options::new(args);
        while let Some(option) = options.next() {
            let has_middle = search.member.is_some() || search.middle.is_some();
            if is(option, "FROMMEMBER") && !has_middle {
                search.member = Some(options.value()?);
            } else if is(option, "FROMLONLAT") && !has_middle {
                search.middle = Some(point(options.value()?, options.value()?)?);
            } else if is(option, "BYRADIUS") && search.shape.is_none() {
                search.circle(options.value()?, options.value()?)?;
            } else if is(option, "BYBOX") && search.shape.is_none() {
                let width = positive(options.value()?, "width")?;
                let height = positive(options.value()?, "height")?;
                search.metres = unit(options.value()?)?;
                let metres = search.metres;
                search.shape = Some(Shape::Box(width * metres, height * metres));
            } else if is(option, "STOREDIST") && target.is_some() {
                search.target = target.map(|target| (target, true));
            } else if !search.option(option, &mut options)? {
                return Err(Failure::SYNTAX);
            }
        }
        let name = if target.is_some() {
            "geosearchstore"
        } else {
            "geosearch"
        };
        if search.member.is_none() && search.middle.is_none() {
            return Err(Failure::client(format!(
                "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {name}"
            )));
        }
        if search.shape.is_none() {
            return Err(Failure::client(format!(
                "ERR exactly one of BYRADIUS and BYBOX can be specified for {name}"
            )));
        }
        search.finish()
    }

    /// Parses the options of GEORADIUS and its relatives, after the unit.
    fn classic(mut self, args: &'a [Bytes], may_store: bool) -> Result<Search<'a>> {
        let mut options = Options::new(args);
        while let Some(option) = options.next() {
            if may_store && (is(option, "STORE") || is(option, "STOREDIST")) {
                self.target = Some((options.value()?, is(option, "STOREDIST")));
                self.event = "georadiusstore";
            } else if !self.option(option, &mut options)? {
                return Err(Failure::SYNTAX);
            }
        }
        self.finish()
    }

    fn finish(self) -> Result<Search<'a>> {
        let Shown {
            distance,
            number,
            point,
        } = self.shown;
        if self.target.is_some() && (distance || number || point) {
            return Err(Failure::client(
                "ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
            ));
        }
        Ok(self)
    }

    fn hits(&self, data: &mut Data, set: &Collection, middle: Point) -> Result<Vec<Hit>> {
        let shape = self.shape.unwrap_or(Shape::Circle(0.0));
        let mut hits = Vec::new();
        for range in hash::covering(middle, shape.radius()) {
            let found = sorted_sets::by_score(data, set, range.start as f64, range.end as f64)?;
            for (member, score) in found {
                let number = hash::number_of(score);
                let point = hash::decode(number);
                if let Some(distance) = shape.distance(middle, point) {
                    hits.push(Hit {
                        member,
                        number,
                        point,
                        distance,
                    });
                    if self.any && hits.len() == self.count {
                        return Ok(hits);
                    }
                }
            }
        }
        Ok(hits)
    }

    fn run(&self, data: &mut Data, key: &[u8]) -> Result<Reply> {
        let found = data.collection(key, Kind::SortedSet)?;
        let mut hits = Vec::new();
        if let Some((_, set)) = &found {
            let middle = match (self.middle, self.member) {
                (Some(middle), _) => middle,
                (None, Some(member)) => sorted_sets::score_of(data, set, member)?
                    .map(|score| hash::decode(hash::number_of(score)))
                    .ok_or_else(|| Failure::client("ERR could not decode requested zset member"))?,
                (None, None) => return Err(Failure::SYNTAX),
            };
            hits = self.hits(data, set, middle)?;
        }
        if self.is_sorted || (self.count != usize::MAX && !self.any) {
            hits.sort_by(|a, b| a.distance.total_cmp(&b.distance));
            if self.from_far {
                hits.reverse();
            }
        }
        hits.truncate(self.count);
        if let Some((target, with_distance)) = self.target {
            let members: Vec<Scored> = hits
                .into_iter()
                .map(|hit| {
                    let score = if with_distance {
                        hit.distance / self.metres
                    } else {
                        hit.number as f64
                    };
                    (hit.member, score)
                })
                .collect();
            return sorted_sets::store(data, target, members, self.event);
        }
        Ok(Reply::Array(
            hits.into_iter().map(|hit| self.show(hit)).collect(),
        ))
    }

    fn show(&self, hit: Hit) -> Reply {
        let mut parts = vec![Reply::Bulk(hit.member)];
        if self.shown.distance {
            parts.push(show(hit.distance / self.metres));
        }
        if self.shown.number {
            parts.push(Reply::Integer(hit.number as i64));
        }
        if self.shown.point {
            parts.push(show_point(hit.point));
        }
        if parts.len() == 1 {
            parts.remove(0)
        } else {
            Reply::Array(parts)
        }
    }
}

/// Returns the keys of GEORADIUS or GEORADIUSBYMEMBER: the one that is searched, and each under
/// which the result may be stored.
pub(super) fn keys_of(args: &[Bytes]) -> Vec<Bytes> {
    let stores = |word: &[u8]| is(word, "STORE") || is(word, "STOREDIST");
    let targets = args
        .windows(2)
        .skip(5)
        .filter(|pair| stores(&pair[0]))
        .map(|pair| pair[1].clone());
    args.get(1).cloned().into_iter().chain(targets).collect()
}

pub(super) fn geosearch(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Search::modern(&args[2..], None)?.run(data, &args[1])
}

pub(super) fn geosearchstore(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Search::modern(&args[3..], Some(&args[1]))?.run(data, &args[2])
}

/// GEORADIUS: the middle is a point.
fn around_point(data: &mut Data, args: &[Bytes], may_store: bool) -> Result<Reply> {
    let mut search = Search::new();
    search.middle = Some(point(&args[2], &args[3])?);
    search.circle(&args[4], &args[5])?;
    search.classic(&args[6..], may_store)?.run(data, &args[1])
}

/// GEORADIUSBYMEMBER: the middle is a member.
fn around_member(data: &mut Data, args: &[Bytes], may_store: bool) -> Result<Reply> {
    let mut search = Search::new();
    search.member = Some(&args[2]);
    search.circle(&args[3], &args[4])?;
    search.classic(&args[5..], may_store)?.run(data, &args[1])
}

pub(super) fn georadius(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    around_point(data, args, true)
}

pub(super) fn georadius_ro(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    around_point(data, args, false)
}

pub(super) fn georadiusbymember(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    around_member(data, args, true)
}

pub(super) fn georadiusbymember_ro(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    around_member(data, args, false)
}
