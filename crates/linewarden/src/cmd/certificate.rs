//! `linewarden certificate`: a CA of the fleet's own, kept offline, and what it signs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use linewarden_link::gateway_uri;
use linewarden_protocol::ids::GatewayId;
use linewarden_service::user_uri;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::failure::Failure;
use crate::output::Output;
use crate::{results, secret_file, tls};

const CA_CERT: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const KEY_BYTES_MAX: usize = 16_384;
/// How long a CA is good, days.
const CA_DAYS: u32 = 3_650;
/// How long others are, days.
const DAYS: u32 = 398;

/// What to make.
#[derive(Subcommand, Debug)]
pub enum CertificateCommand {
    /// Make a CA: a directory with its certificate and its key
    #[command(after_help = "\
Examples:
  linewarden certificate ca --out pki

Keep the directory offline, on a machine that nobody reaches; ca.pem alone goes to controllers and gateways. To exchange a CA, make \
another one, give everybody both certificates in one file, then everybody new certificates, then take the old one out of the file.")]
    Ca(CaArgs),
    /// Make a certificate for a controller
    #[command(after_help = "\
Examples:
  linewarden certificate controller --ca pki --name ctl-a.example --name 192.0.2.10 --out ctl-a")]
    Controller(ControllerArgs),
    /// Make a certificate for a gateway, by which it is the one of that number
    #[command(after_help = "\
Examples:
  linewarden certificate gateway --ca pki --id 7 --out gateway-7

Never make one for a number that another gateway has or had: keys are made for the number.")]
    Gateway(GatewayArgs),
    /// Make a certificate for a user of the API
    #[command(after_help = "\
Examples:
  linewarden certificate user --ca pki --name build-server --out build-server

What the user may is said by `linewarden user add NAME --certificate`.")]
    User(UserArgs),
}

/// Where.
#[derive(Args, Debug)]
pub struct CaArgs {
    /// The new directory
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// By whom, where, and for how long.
#[derive(Args, Debug)]
pub struct Common {
    /// The CA's directory
    #[arg(long, value_name = "DIRECTORY")]
    ca: PathBuf,
    /// The files NAME.pem and NAME.key are made, and never overwritten
    #[arg(long, value_name = "NAME")]
    out: PathBuf,
    /// How long it is good
    #[arg(long, value_name = "DAYS", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// For which controller.
#[derive(Args, Debug)]
pub struct ControllerArgs {
    #[command(flatten)]
    common: Common,
    /// A DNS name or an address by which it is reached; may be given several times
    #[arg(long = "name", value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// For which gateway.
#[derive(Args, Debug)]
pub struct GatewayArgs {
    #[command(flatten)]
    common: Common,
    /// Its number, as in its configuration
    #[arg(long, value_name = "NUMBER")]
    id: u32,
}

/// For which user.
#[derive(Args, Debug)]
pub struct UserArgs {
    #[command(flatten)]
    common: Common,
    /// Their name
    #[arg(long, value_name = "NAME")]
    name: String,
}

impl CertificateCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Ca(args) => args.json,
            Self::Controller(args) => args.common.json,
            Self::Gateway(args) => args.common.json,
            Self::User(args) => args.common.json,
        }
    }
}

/// Makes it.
pub fn run(command: &CertificateCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        CertificateCommand::Ca(args) => ca(args, output),
        CertificateCommand::Controller(args) => {
            let mut parameters = CertificateParams::new(args.names.clone()).map_err(failed)?;
            parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            let name = args.names.first().map_or("controller", String::as_str);
            issue(&args.common, parameters, name, output)
        }
        CertificateCommand::Gateway(args) => {
            let parameters = client(&gateway_uri(GatewayId(args.id)))?;
            issue(&args.common, parameters, &format!("gateway {}", args.id), output)
        }
        CertificateCommand::User(args) => {
            let is_plain =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@');
            if args.name.is_empty() || !args.name.bytes().all(is_plain) {
                return Err(Failure::input(
                    "--name: letters, digits, and - _ . @ are what a name in a certificate may have",
                ));
            }
            let parameters = client(&user_uri(&args.name))?;
            issue(&args.common, parameters, &args.name, output)
        }
    }
}

fn failed(error: rcgen::Error) -> Failure {
    Failure::failed(format!("the certificate cannot be made: {error}"))
}

fn client(uri: &str) -> Result<CertificateParams, Failure> {
    let mut parameters = CertificateParams::default();
    let uri = Ia5String::try_from(uri).map_err(failed)?;
    parameters.subject_alt_names = vec![SanType::URI(uri)];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(parameters)
}

/// From an hour ago, for clocks that are behind.
fn set_times(parameters: &mut CertificateParams, days: u32) -> Result<(), Failure> {
    let now_s = i64::try_from(super::now_s()?).unwrap_or_default();
    let at = |at_s: i64| {
        time::OffsetDateTime::from_unix_timestamp(at_s)
            .map_err(|error| Failure::failed(format!("the clock stands where no certificate can: {error}")))
    };
    parameters.not_before = at(now_s.saturating_sub(3_600))?;
    parameters.not_after = at(now_s.saturating_add(i64::from(days).saturating_mul(86_400)))?;
    Ok(())
}

fn ca(args: &CaArgs, output: Output) -> Result<(), Failure> {
    if args.out.symlink_metadata().is_ok() {
        return Err(Failure::input(format!(
            "{} exists already, and a CA is never overwritten; name another directory",
            args.out.display()
        )));
    }
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
        .distinguished_name
        .push(DnType::CommonName, "Linewarden CA");
    set_times(&mut parameters, CA_DAYS)?;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = parameters.self_signed(&key).map_err(failed)?;
    std::fs::create_dir(&args.out)
        .map_err(|error| Failure::input(format!("{}: cannot be made: {error}", args.out.display())))?;
    results::write_private(&args.out.join(CA_KEY), key.serialize_pem())?;
    results::write(&args.out.join(CA_CERT), certificate.pem())?;
    output.object(&serde_json::json!({ "ca": args.out.join(CA_CERT), "key": args.out.join(CA_KEY) }))?;
    output.line(format_args!(
        "made a CA in {}; keep it offline, {CA_CERT} alone goes to others",
        args.out.display()
    ))
}

fn issue(
    common: &Common,
    mut parameters: CertificateParams,
    name: &str,
    output: Output,
) -> Result<(), Failure> {
    let (cert, key) = (with_end(&common.out, "pem"), with_end(&common.out, "key"));
    for path in [&cert, &key] {
        results::check_new(path, false)?;
    }
    let issuer = issuer(&common.ca)?;
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // RFC 5280, 4.2.1.1; strict clients refuse a certificate without it.
    parameters.use_authority_key_identifier_extension = true;
    set_times(&mut parameters, common.days)?;
    let pair = KeyPair::generate().map_err(failed)?;
    let certificate = parameters.signed_by(&pair, &issuer).map_err(failed)?;
    results::write_private(&key, pair.serialize_pem())?;
    results::write(&cert, certificate.pem())?;
    output.object(&serde_json::json!({ "cert": cert, "key": key, "days": common.days }))?;
    output.line(format_args!(
        "made {} and {}, good for {} days",
        cert.display(),
        key.display(),
        common.days
    ))
}

/// `gateway-1.2` and `pem` are `gateway-1.2.pem`: nothing of the name is cut off.
fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

fn issuer(directory: &Path) -> Result<Issuer<'static, KeyPair>, Failure> {
    let (cert, key) = (directory.join(CA_CERT), directory.join(CA_KEY));
    let text = secret_file::read(&key, KEY_BYTES_MAX)?;
    let no_key = |_| Failure::input(format!("{}: holds no private key in PEM", key.display()));
    let text = std::str::from_utf8(&text).map_err(|_| no_key(rcgen::Error::CouldNotParseKeyPair))?;
    let pair = KeyPair::from_pem(text).map_err(no_key)?;
    let chain = tls::certificates(&cert)?;
    let no_ca = || Failure::input(format!("{}: holds no certificate of a CA in PEM", cert.display()));
    let chain = String::from_utf8(chain).map_err(|_| no_ca())?;
    Issuer::from_ca_cert_pem(&chain, pair).map_err(|_| no_ca())
}
