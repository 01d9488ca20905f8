/* serve_ports.h: checks the ports of `sluice serve` before manager and server start.
 * Single-threaded. */
#pragma once

struct cli;
struct error;

/* ALREADY_EXISTS if other processes have ports of this serve: the error names all busy ports with
 * program and pid, and the command's advice names the options and the command that ends the other
 * Sluice. The programs themselves report other faults of an address. */
int serve_ports_check(struct cli *cli, struct error *err);
