//! The agents, asked by a subnet manager that is made of MADs.

mod address;
mod agent_table;
mod agent_table_oracle;
mod m_key;
mod pma;
mod port_info;
mod rig;
mod rmpp;
mod route;
mod sma;
mod switch;
