/* follow_replicas.h: announces replicas whose workers die while `sluice serve` runs. Loader thread
 * only. */
#pragma once

struct cli;

/* Follows the manager's events until cli->ending. Announces each replica that dies, starts again or
 * fails. Survives restarts of the manager: events of the meantime are announced then. */
void follow_replicas(struct cli *cli);
