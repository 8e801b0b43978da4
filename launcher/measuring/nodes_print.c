/* What comparing nodes found, as a report. */
#include "core/text.h"
#include "launcher/measuring/nodes.h"

static weft_counted value_text(weft_nodes_kind kind, double value)
{
    if (kind == WEFT_NODES_LATENCY)
        return weft_seconds_text(value / 1e6);
    return weft_scaled_text(value, 1000, kind == WEFT_NODES_COMPUTE ? "FLOP/s" : "B/s");
}

static void report_value(weft_report *r, const char *title, weft_nodes_kind kind, double value)
{
    if (!(value > 0))
        return;
    weft_report_cell(r, title, "%s", value_text(kind, value).text);
    weft_report_value(r, weft_nodes_kind_key(kind), value);
}

/* A node's ranks, with or without their links. */
static void report_ranks(weft_report *r, const weft_nodes *nodes, int first)
{
    weft_report_open(r, WEFT_REPORT_TABLE, "ranks");
    for (int rank = first; rank < nodes->num_ranks; rank++) {
        const weft_nodes_rank *of = &nodes->ranks[rank];
        if (of->first_rank != first)
            continue;
        weft_report_record(r);
        weft_report_row(r, "rank", "rank", WEFT_UNIT_INDEX, rank);
        report_value(r, "compute", WEFT_NODES_COMPUTE, of->value[WEFT_NODES_COMPUTE]);
        report_value(r, "copies", WEFT_NODES_MEMORY, of->value[WEFT_NODES_MEMORY]);
    }
    weft_report_close(r);
}

static void report_links(weft_report *r, const weft_nodes *nodes, int first)
{
    weft_report_open(r, WEFT_REPORT_TABLE, "links");
    for (int rank = first; rank < nodes->num_ranks; rank++)
        for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++) {
            const weft_nodes_link *link = &nodes->ranks[rank].links[i];
            if (nodes->ranks[rank].first_rank != first || link->peer < 0)
                continue;
            weft_report_record(r);
            weft_report_row(r, "rank", "link of rank", WEFT_UNIT_INDEX, rank);
            weft_report_row(r, "peer", "to rank", WEFT_UNIT_INDEX, link->peer);
            weft_report_cell(r, "of node", "%s", nodes->ranks[link->peer].node);
            report_value(r, "latency", WEFT_NODES_LATENCY, link->latency_us);
            report_value(r, "link", WEFT_NODES_LINK, link->bytes_per_s);
        }
    weft_report_close(r);
}

static const char *fault_of(const weft_nodes_rank *lead)
{
    return *lead->fault ? lead->fault : lead->apart;
}

static void report_node(weft_report *r, const weft_nodes *nodes, int first)
{
    const weft_nodes_rank *lead = &nodes->ranks[first];
    weft_report_line(r, "%s", lead->node);
    weft_report_text(r, "node", NULL, lead->node);
    report_ranks(r, nodes, first);
    report_links(r, nodes, first);
    weft_report_open(r, WEFT_REPORT_OBJECT, "disk");
    weft_report_open(r, WEFT_REPORT_FACTS, NULL);
    report_value(r, "disk: writes and syncs", WEFT_NODES_WRITE, lead->value[WEFT_NODES_WRITE]);
    report_value(r, "disk: reads", WEFT_NODES_READ, lead->value[WEFT_NODES_READ]);
    if (*fault_of(lead))
        weft_report_text(r, "fault", "disk", fault_of(lead));
    weft_report_close(r);
    weft_report_close(r);
}

static void tell_odd(weft_report *r, const weft_nodes *nodes, const weft_nodes_odd *odd)
{
    const weft_nodes_rank *rank = &nodes->ranks[odd->rank];
    const char *what = weft_nodes_kind_text(odd->kind);
    char who[320], how[320];
    if (odd->peer >= 0)
        snprintf(who, sizeof who, "%s of rank %d (%s) and rank %d (%s)", what, odd->rank,
                 rank->node, odd->peer, nodes->ranks[odd->peer].node);
    else if (odd->is_node)
        snprintf(who, sizeof who, "node %s: %s", rank->node, odd->value > 0 ? what : "disk");
    else
        snprintf(who, sizeof who, "node %s, rank %d: %s", rank->node, odd->rank, what);
    snprintf(how, sizeof how, "%s, %.3g times worse than the median, %s",
             value_text(odd->kind, odd->value).text, odd->factor,
             value_text(odd->kind, odd->median).text);
    weft_report_line(r, "odd: %s: %s", who, odd->value > 0 ? how : fault_of(rank));
}

static void report_odd(weft_report *r, const weft_nodes *nodes, const weft_nodes_odd *odd)
{
    const weft_nodes_rank *rank = &nodes->ranks[odd->rank];
    tell_odd(r, nodes, odd);
    weft_report_record(r);
    weft_report_text(r, "what", NULL, odd->value > 0 ? weft_nodes_kind_text(odd->kind) : "disk");
    weft_report_text(r, "node", NULL, rank->node);
    if (!odd->is_node)
        weft_report_value(r, "rank", odd->rank);
    if (odd->peer >= 0) {
        weft_report_value(r, "peer", odd->peer);
        weft_report_text(r, "peer_node", NULL, nodes->ranks[odd->peer].node);
    }
    if (odd->value > 0) {
        weft_report_value(r, "value", odd->value);
        weft_report_value(r, "median", odd->median);
        weft_report_value(r, "factor", odd->factor);
    } else {
        weft_report_text(r, "fault", NULL, fault_of(rank));
    }
}

/* Whether the folder is one, where it has to be. */
static void report_folder(weft_report *r, const weft_nodes *nodes,
                          const weft_nodes_options *options)
{
    bool is_one = true;
    for (int rank = 0; rank < nodes->num_ranks; rank++)
        is_one = is_one && !*fault_of(&nodes->ranks[rank]);
    if (!options->is_shared)
        return;
    weft_report_bool(r, "one_folder", is_one);
    if (is_one && nodes->num_nodes > 1)
        weft_report_line(r, "%s is one folder of all nodes.", options->folder);
}

void weft_nodes_report(weft_report *r, const weft_nodes *nodes, const weft_nodes_options *options)
{
    weft_report_text(r, "weft", NULL, WEFT_VERSION);
    weft_report_bool(r, "even", nodes->num_odd == 0);
    weft_report_value(r, "factor", options->factor);
    weft_report_open(r, WEFT_REPORT_GROUP, "nodes");
    for (int rank = 0; rank < nodes->num_ranks; rank++)
        if (nodes->ranks[rank].first_rank == rank) {
            weft_report_record(r);
            report_node(r, nodes, rank);
        }
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_GROUP, "odd");
    for (int i = 0; i < nodes->num_odd; i++)
        report_odd(r, nodes, &nodes->odd[i]);
    weft_report_close(r);
    report_folder(r, nodes, options);
    if (nodes->num_ranks == 1)
        weft_report_line(r, "One rank: there is nobody to compare it with.");
    else if (nodes->num_odd == 0)
        weft_report_line(r,
                         "%s of %s are even: none is %g times worse than the median of the others.",
                         weft_count_text(nodes->num_ranks, "rank").text,
                         weft_count_text(nodes->num_nodes, "node").text, options->factor);
}
