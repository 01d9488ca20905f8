/* dispatch.h: which replica a request goes to, a new one that may enter (admit.h) and one that
 * waits (waiting.h). gateway_pick_link, gateway_prospect and gateway_dispatch (gateway.h) are
 * here too. Any thread unless said otherwise.
 *
 * The queue is the replicas' own: they know priorities, fairness and what a prompt costs. Here it
 * is counted, over all replicas of a version, so that what is too much is refused at once; and
 * requests are held back only where this server's limit per replica is lower than the replica's. */
#pragma once

struct error;
struct gateway;
struct link;
struct relay;

/* A request whose replica was lost and that another one refuses waits (waiting.h), but only until
 * the time for a resume is over, then it ends. No lock is held. */
void dispatch_wait_again(struct gateway *gateway, struct relay *relay);
/* A replica carries one request less: who waits is looked at now. */
void dispatch_place_free(struct gateway *gateway);
/* Counts a refusal by its reason. One for a deadline that no retry can meet either
 * becomes DEADLINE_EXCEEDED: it is what the client would hear in the end. */
void dispatch_settle_refusal(struct gateway *gateway, const struct relay *relay, struct error *err);

/* A replica would not have the request, which is on no link now: another one is asked, and if there
 * is none, or none that takes it, the request ends with *err, what the first one said. */
void dispatch_elsewhere(struct gateway *gateway, struct relay *relay, const struct link *avoid,
                        struct error *err);

/* The ticker: tries again for everything that waits. */
void dispatch_retry_waiting(struct gateway *gateway);
/* The ticker: tells the clients of requests that queue here that they were accepted. */
void dispatch_tell_waiting(struct gateway *gateway);
/* Ends everything that waits, at the end of the program. */
void dispatch_end_waiting(struct gateway *gateway);
