use std::net::IpAddr;

use polyverbs_wire::layout::Octets;

use super::*;

#[track_caller]
fn complaint(text: &str) -> String {
    Configuration::parse(text).unwrap_err().to_string()
}

#[test]
fn by_default_there_is_one_device_of_each_kind_at_each_address() {
    let standard = Configuration::standard();
    assert_eq!(Configuration::parse(""), Ok(standard.clone()));
    let names: Vec<_> = standard.devices.iter().map(|it| &*it.name).collect();
    assert_eq!(names[..2], ["ib0", "iw0"]);
    assert_eq!(standard.devices.len(), 2 * addresses().len());
    assert!(standard.devices[0].address.is_loopback());
    let mut others = standard.devices[2..].iter();
    assert!(others.all(|device| !device.address.is_loopback()));
}

#[test]
fn a_configuration_of_a_device_survives_parsing_and_printing() {
    let text = r#"
trace = "-"
pcap = "packets"

[[device]]
name = "mlx5_0"
address = "::1"
link-layer = "infiniband"
fault = "drop=5%,seed=7"
limits = { max_qp = 16, max_cqe = 100 }

[[device]]
transport = "iwarp"
wire = false
shared-memory = false
crc = false
speaks-first = true
strict-signaling = false
"#;
    let read = Configuration::parse(text).unwrap();
    assert_eq!(read.trace, Some("-".into()));
    let [first, second] = &*read.devices else {
        panic!("{read:?}");
    };
    assert_eq!(first.address, "::1".parse::<IpAddr>().unwrap());
    assert_eq!(first.link_layer(), LinkLayer::Infiniband);
    assert_eq!(first.limits.len(), 2);
    assert_eq!(
        (&*second.name, second.transport),
        ("iw0", TransportName::Iwarp)
    );
    assert!(second.address.is_loopback());
    assert!(first.wire && !second.wire && first.crc && !second.crc);
    assert!(!first.speaks_first && second.speaks_first);
    assert!(first.strict_signaling && !second.strict_signaling);
    assert!(first.shared_memory && !second.shared_memory);
    let written = read.to_text().unwrap();
    assert_eq!(Configuration::parse(&written), Ok(read), "{written}");
}

#[test]
fn configuration_errors_name_their_line() {
    assert_eq!(
        complaint("[[device]]\nname = \"ib0\"\naddress = \"localhost\"\n"),
        "line 3: invalid IP address syntax"
    );
    let unknown = complaint("[[device]]\nname = \"ib0\"\nspeed = 7\n");
    assert!(
        unknown.starts_with("line 3: unknown field `speed`"),
        "{unknown}"
    );
    let limit = complaint("[[device]]\n[device.limits]\nmax_fun = 7\n");
    assert!(
        limit.starts_with("line 3: no limit is called max_fun"),
        "{limit}"
    );
    let fault = complaint("\nfault = \"flood=1%\"\n");
    assert!(fault.starts_with("line 2: no fault is called"), "{fault}");
    let stream = complaint("\nfault = \"drop=1%\"\n[[device]]\ntransport = \"iwarp\"\n");
    assert!(stream.starts_with("line 2: "), "{stream}");
    let nobody = complaint("\nlink-layer = \"infiniband\"\n[[device]]\ntransport = \"iwarp\"\n");
    assert!(nobody.starts_with("line 2: a link layer"), "{nobody}");
    let taken = complaint("[[device]]\nname = \"a\"\n\n[[device]]\nname = \"a\"\n");
    assert_eq!(taken, "line 4: there is a device named a already");
    let layer = complaint("[[device]]\ntransport = \"iwarp\"\nlink-layer = \"ethernet\"\n");
    assert_eq!(layer, "line 1: iw0: a link layer is a RoCE device's");
    for (address, why) in [
        ("0.0.0.0", "is no address of one machine"),
        ("ff02::1", "is no address of one machine"),
        ("fe80::1", "is an address of one link only"),
    ] {
        let told = complaint(&format!("\n[[device]]\naddress = \"{address}\"\n"));
        assert_eq!(told, format!("line 2: ib0: {address} {why}"));
    }
    let checksums = complaint("[[device]]\ncrc = false\n");
    assert_eq!(
        checksums,
        "line 1: ib0: only iWARP devices do without checksums"
    );
    let first = complaint("[[device]]\nspeaks-first = true\n");
    assert_eq!(
        first,
        "line 1: ib0: only iWARP devices have to be told to speak first"
    );
    assert!(complaint("device = 7").starts_with("line 1: "));
    assert!(complaint("[[device]\n").starts_with("line 1: "));
}

#[test]
fn a_device_is_parsed_from_one_argument() {
    let device: Device = "name=x,transport=iwarp,address=192.0.2.7,max_qp=3"
        .parse()
        .unwrap();
    assert_eq!(device.name, "x");
    assert_eq!(device.transport, TransportName::Iwarp);
    assert_eq!(device.limits[&"max_qp".parse().unwrap()], 3);
    for (wrong, why) in [
        ("name", "not of the form key=value"),
        (
            "transport=ib",
            "transport is roce, iwarp or infiniband, not ib",
        ),
        ("address=here", "here is no IP address"),
        ("wire=maybe", "wire is yes or no, not maybe"),
        ("crc=maybe", "crc is yes or no, not maybe"),
        ("max_qp=few", "max_qp: few is no number"),
        ("max_fun=1", "max_fun is none of name"),
        ("link-layer=wood", "link-layer is ethernet or infiniband"),
    ] {
        let told = wrong.parse::<Device>().unwrap_err();
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn device_names_are_valid_in_paths() {
    let mut configuration = Configuration::default();
    for wrong in ["a/b", "..", ".hidden", "two words", &"x".repeat(64)] {
        let device = Device {
            name: wrong.into(),
            ..Device::default()
        };
        assert!(configuration.add(device).is_err(), "{wrong}");
    }
}

#[test]
fn settings_of_a_device_override_the_defaults() {
    let text = r#"
fault = "delay=1ms"
link-layer = "infiniband"

[[device]]
fault = "drop=5%"

[[device]]
link-layer = "ethernet"

[[device]]
transport = "iwarp"
"#;
    let read = Configuration::parse(text).unwrap();
    let said = read.devices.iter().map(|it| {
        let fault = it.fault.map(|fault| fault.to_string());
        (fault.unwrap_or_default(), it.link_layer())
    });
    let (infiniband, ethernet) = (LinkLayer::Infiniband, LinkLayer::Ethernet);
    let expected = [
        ("drop=5%", infiniband),
        ("delay=1ms", ethernet),
        ("delay=1ms", ethernet),
    ];
    let expected = expected.map(|(fault, layer)| (fault.to_owned(), layer));
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

#[test]
fn a_lid_is_the_last_part_of_an_address() {
    let device: Device = "address=192.0.2.7,link-layer=infiniband".parse().unwrap();
    assert_eq!(device.lid(), Some(0x0207));
    assert_eq!(
        device.neighbour(0x0309),
        "192.0.3.9".parse::<IpAddr>().unwrap()
    );
    let six: Device = "address=fd00::2,link-layer=infiniband".parse().unwrap();
    assert_eq!(six.lid(), Some(2));
    assert_eq!(six.neighbour(3), "fd00::3".parse::<IpAddr>().unwrap());
    assert_eq!(Device::default().lid(), None);
}

#[test]
fn faults_apply_to_devices_with_links() {
    let mut configuration = Configuration::standard();
    configuration.set_fault("drop=5%".parse().unwrap()).unwrap();
    for device in &configuration.devices {
        assert_eq!(
            device.fault.is_some(),
            device.transport == TransportName::Roce
        );
    }
    configuration.devices.retain(|device| device.name == "iw0");
    let refused = configuration.set_fault("drop=5%".parse().unwrap());
    assert!(refused.unwrap_err().message.contains("datagram link"));
    assert!(configuration.set_link_layer(LinkLayer::Infiniband).is_err());
    let gone = configuration.named("ib0").unwrap_err();
    assert_eq!(gone.message, "no device is named ib0; there are iw0");
}

#[test]
fn a_program_at_a_node_has_the_adapter_of_the_node_only() {
    let mut configuration = Configuration::standard();
    assert_eq!(configuration.adapter(), "fabric0");
    configuration.be_at_node();
    configuration.devices[0].guid = Some(Octets([1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(configuration.adapter(), "ib0");
    let [adapter] = &*configuration.devices else {
        panic!("{configuration:?}");
    };
    assert_eq!(adapter.guid(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        (adapter.link_layer(), adapter.lid()),
        (LinkLayer::Infiniband, None)
    );
    let text = configuration.to_text().unwrap();
    assert_eq!(Configuration::parse(&text).unwrap(), configuration);
    let wireless = Configuration::parse(
        "[[device]]\nname = \"a\"\ntransport = \"infiniband\"\nwire = false\n",
    );
    assert_eq!(
        wireless.unwrap_err().message,
        "a: a device in a fabric has a wire"
    );
}
