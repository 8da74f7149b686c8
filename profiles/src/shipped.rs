//! The profiles that are shipped.

macro_rules! shipped {
    ($($name:literal)*) => {
        /// Names and texts, in alphabetical order.
        pub(crate) const SHIPPED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../cards/", $name, ".toml")))),*];
    };
}

shipped! {
    "alibaba-erdma"
    "amd-ionic"
    "apple-thunderbolt"
    "aws-efa"
    "azure-mana"
    "broadcom-thor"
    "chelsio-t6"
    "hisilicon-hip09"
    "intel-e810-iwarp"
    "intel-e810-roce"
    "intel-x722"
    "marvell-qedr"
    "mellanox-cx3"
    "mellanox-cx4-lx"
    "mellanox-cx5"
    "mellanox-cx6"
    "rxe-6.1"
    "siw-6.1"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    #[test]
    fn shipped_profiles_are_named_as_their_files() {
        for (name, _) in SHIPPED {
            let profile = Profile::named(name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(profile.name, *name);
        }
        let names: Vec<_> = Profile::names().collect();
        assert!(names.is_sorted(), "{names:?}");
    }
}
