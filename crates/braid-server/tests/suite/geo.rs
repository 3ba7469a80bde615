//! Geo and HyperLogLog.

use std::collections::BTreeSet;

use super::models::seed;
use super::support::{TestServer, run, script};

#[test]
fn positions() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania => 2
        GEOADD g NX 1 1 Palermo => 0
        GEOADD g XX CH 15.087269 37.502669 Catania => 0
        GEOADD g 181 1 x => (ERR)
        GEOADD g 1 86 x => (ERR)
        GEOADD g 1 1 => (ERR)
        ZSCORE g Palermo => 3479099956230698
        GEODIST g Palermo Catania => 166274.1516
        GEODIST g Palermo Catania KM => 166.2742
        GEODIST g Palermo nobody => nil
        GEODIST g Palermo Catania x => (ERR)
        GEOHASH g Palermo Catania nobody => [sqc8b49rny0 sqdtr74hyu0 nil]
        GEOPOS g Palermo nobody => [[13.361389338970184 38.1155563954963] nil]
        GEOPOS missing a => [nil]
        ZADD n -2 a -1.5 b inf c 1e300 d 0 f => 5
        GEOHASH n c d f => [00bh0hbj200 00bh0hbj200 00bh0hbj200]
        GEODIST n a f => 18919844.5891
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km ASC => [Catania Palermo]
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km DESC COUNT 1 WITHDIST => [[Palermo 190.4424]]
        GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 100 km WITHHASH => [[Catania 3479447370796909]]
        GEOSEARCH g FROMMEMBER Palermo BYBOX 400 400 km ASC => [Palermo Catania]
        GEOSEARCH g FROMMEMBER Palermo BYBOX 400 40 km => [Palermo]
        GEOSEARCH g FROMMEMBER nobody BYBOX 400 40 km => (ERR)
        GEOSEARCH g FROMMEMBER Palermo FROMLONLAT 1 1 BYRADIUS 1 km => (ERR)
        GEOSEARCH g ASC DESC BYRADIUS 1 km => (ERR)
        GEOSEARCH missing FROMLONLAT 15 37 BYRADIUS 200 km => []
        GEOSEARCHSTORE t g FROMLONLAT 15 37 BYRADIUS 200 km STOREDIST => 2
        ZRANGE t 0 -1 => [Catania Palermo]
        GEOSEARCHSTORE t g FROMLONLAT 0 0 BYRADIUS 1 m => 0
        EXISTS t => 0
        GEORADIUS g 15 37 200 km ASC COUNT 1 => [Catania]
        GEORADIUS g 15 37 200 km STORE t => 2
        GEORADIUS g 15 37 200 km STORE t WITHDIST => (ERR)
        GEORADIUS_RO g 15 37 200 km STORE t => (ERR)
        GEORADIUSBYMEMBER g Palermo 200 km ASC => [Palermo Catania]
        GEORADIUSBYMEMBER_RO g Palermo 1 km => [Palermo]
        GEODIST t Palermo Catania => 166274.1516
        COMMAND GETKEYS GEORADIUS g 15 37 200 km ASC STORE t => [g t]
        COMMAND GETKEYS GEORADIUSBYMEMBER g STORE 200 km STOREDIST t => [g t]
        SET s x => OK
        GEOADD s 1 1 a => (WRONGTYPE)
        ",
    );
}

#[test]
fn a_search_finds_what_a_scan_finds() {
    let seed = seed();
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = TestServer::new();
    let connection = &mut server.connect();
    let coordinates =
        |random: &mut fastrand::Rng| (random.f64() * 359.0 - 179.5, random.f64() * 169.0 - 84.5);
    for number in 0..300 {
        let (longitude, latitude) = coordinates(&mut random);
        let _: bool = run(
            connection,
            &format!("GEOADD g {longitude} {latitude} m{number}"),
        );
    }
    for _ in 0..60 {
        let middle = format!("m{}", random.u16(..300));
        let radius = 10f64.powf(random.f64() * 3.0 + 1.3);
        let mut found: BTreeSet<String> = run(
            connection,
            &format!("GEOSEARCH g FROMMEMBER {middle} BYRADIUS {radius} km"),
        );
        let mut expected = BTreeSet::new();
        for number in 0..300 {
            let distance: f64 = run(connection, &format!("GEODIST g {middle} m{number} km"));
            let member = format!("m{number}");
            // The distance is rounded: a member on the edge may be found or not.
            if (distance - radius).abs() < 0.001 {
                found.remove(&member);
            } else if distance <= radius {
                expected.insert(member);
            }
        }
        assert_eq!(found, expected, "{middle} {radius}");
    }
}

#[test]
fn different_elements_are_counted() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        PFADD a 1 2 3 => 1
        PFADD a 1 2 3 => 0
        PFADD a 4 => 1
        PFCOUNT a => 4
        PFADD b => 1
        PFADD b => 0
        PFCOUNT b missing => 0
        PFADD b 4 5 6 => 1
        PFCOUNT a b => 6
        PFMERGE c a b missing => OK
        PFCOUNT c => 6
        PFMERGE a b => OK
        PFCOUNT a => 6
        STRLEN a => 12304
        TYPE a => string
        SET s x => OK
        PFADD s 1 => (WRONGTYPE)
        PFCOUNT s => (WRONGTYPE)
        LPUSH l 1 => 1
        PFMERGE a l => (WRONGTYPE)
        ",
    );
}
