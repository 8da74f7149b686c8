//! Versions of functions that the library does not implement.

use crate::program::{compile, must_print};

#[test]
fn an_absent_version_fails_as_the_result_of_the_function_allows() {
    let results = "\
        ibv_dealloc_pd = 95, EOPNOTSUPP\n\
        ibv_dereg_mr = 95, EOPNOTSUPP\n\
        ibv_query_gid = -1, EOPNOTSUPP\n\
        ibv_alloc_pd = 0, EOPNOTSUPP\n\
        ibv_get_device_guid = 0, EOPNOTSUPP\n";
    must_print(&compile("absent"), &[], "", results);
}
