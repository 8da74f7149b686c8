//! What the devices can do, with the extension.

use acme_checksum as _;
use capability_matrix::Matrix;

fn main() -> Result<(), polyverbs::provider::RegistryError> {
    let matrix = Matrix::verified(&polyverbs::devices()?, &mut |_| ())?;
    print!("{}", matrix.to_text(100, false));
    std::process::exit(i32::from(matrix.mismatches().next().is_some()));
}
