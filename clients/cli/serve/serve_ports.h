/* serve_ports.h: checks the ports of `sluice serve` before manager and server start.
 * Single-threaded. */
#pragma once

struct cli;
struct error;

/* ALREADY_EXISTS if other processes have ports of this serve. The error names all busy ports, each
 * with program and pid. The command's advice names the options to change, and the command that ends
 * another Sluice. The programs themselves report other faults of an address. */
int serve_ports_check(struct cli *cli, struct error *err);
