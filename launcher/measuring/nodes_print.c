/* What comparing nodes found, for people and as JSON. */
#include <cjson/cJSON.h>

#include "core/text.h"
#include "launcher/measuring/nodes.h"

typedef struct value_words {
    char text[32];
} value_words;

static value_words value_text(weft_nodes_kind kind, double value)
{
    value_words t;
    if (kind == WEFT_NODES_COMPUTE)
        snprintf(t.text, sizeof t.text, "%.4g GFLOP/s", value * 1e-9);
    else if (kind == WEFT_NODES_LATENCY)
        snprintf(t.text, sizeof t.text, "%.4g us", value);
    else if (value >= 1e9)
        snprintf(t.text, sizeof t.text, "%.4g GB/s", value * 1e-9);
    else
        snprintf(t.text, sizeof t.text, "%.4g MB/s", value * 1e-6);
    return t;
}

static void print_node(const weft_nodes *nodes, int first, FILE *out)
{
    const weft_nodes_rank *ranks = nodes->ranks, *lead = &ranks[first];
    fprintf(out, "%s\n", lead->node);
    for (int rank = first; rank < nodes->num_ranks; rank++)
        if (ranks[rank].first_rank == first)
            fprintf(out, "  %-10s  rank %-5d  %16s  copies %14s\n",
                    weft_nodes_kind_text(WEFT_NODES_COMPUTE), rank,
                    value_text(WEFT_NODES_COMPUTE, ranks[rank].value[WEFT_NODES_COMPUTE]).text,
                    value_text(WEFT_NODES_MEMORY, ranks[rank].value[WEFT_NODES_MEMORY]).text);
    for (int rank = first; rank < nodes->num_ranks; rank++)
        for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++) {
            const weft_nodes_link *link = &ranks[rank].links[i];
            if (ranks[rank].first_rank == first && link->peer >= 0)
                fprintf(out, "  %-10s  rank %-5d  %16s  %21s  to rank %d (%s)\n",
                        weft_nodes_kind_text(WEFT_NODES_LINK), rank,
                        value_text(WEFT_NODES_LATENCY, link->latency_us).text,
                        value_text(WEFT_NODES_LINK, link->bytes_per_s).text, link->peer,
                        ranks[link->peer].node);
        }
    if (*lead->fault)
        fprintf(out, "  %-10s  %s\n", "disk", lead->fault);
    else
        fprintf(out, "  %-10s  writes and syncs %s, reads %s\n", "disk",
                value_text(WEFT_NODES_WRITE, lead->value[WEFT_NODES_WRITE]).text,
                value_text(WEFT_NODES_READ, lead->value[WEFT_NODES_READ]).text);
}

static void print_odd(const weft_nodes *nodes, const weft_nodes_odd *odd, FILE *out)
{
    const weft_nodes_rank *rank = &nodes->ranks[odd->rank];
    const char *what = weft_nodes_kind_text(odd->kind);
    if (odd->peer >= 0)
        fprintf(out, "odd: %s of rank %d (%s) and rank %d (%s): ", what, odd->rank, rank->node,
                odd->peer, nodes->ranks[odd->peer].node);
    else if (odd->is_node)
        fprintf(out, "odd: node %s: %s: ", rank->node, odd->value > 0 ? what : "disk");
    else
        fprintf(out, "odd: node %s, rank %d: %s: ", rank->node, odd->rank, what);
    if (odd->value > 0)
        fprintf(out, "%s, %.3g times worse than the median, %s\n",
                value_text(odd->kind, odd->value).text, odd->factor,
                value_text(odd->kind, odd->median).text);
    else
        fprintf(out, "%s\n", rank->fault);
}

void weft_nodes_print(const weft_nodes *nodes, const weft_nodes_options *options, FILE *out)
{
    for (int rank = 0; rank < nodes->num_ranks; rank++)
        if (nodes->ranks[rank].first_rank == rank)
            print_node(nodes, rank, out);
    for (int i = 0; i < nodes->num_odd; i++)
        print_odd(nodes, &nodes->odd[i], out);
    if (nodes->num_ranks == 1)
        fprintf(out, "One rank: there is nobody to compare it with.\n");
    else if (nodes->num_odd == 0)
        fprintf(out, "%s of %s are even: none is %g times worse than the median of the others.\n",
                weft_count_text(nodes->num_ranks, "rank").text,
                weft_count_text(nodes->num_nodes, "node").text, options->factor);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static void add_number(cJSON *to, weft_nodes_kind kind, double value)
{
    if (value > 0)
        cJSON_AddNumberToObject(to, weft_nodes_kind_key(kind), value);
}

static void add_ranks(const weft_nodes *nodes, int first, cJSON *node)
{
    cJSON *ranks = cJSON_AddArrayToObject(node, "ranks");
    cJSON *links = cJSON_AddArrayToObject(node, "links");
    for (int rank = first; rank < nodes->num_ranks; rank++) {
        const weft_nodes_rank *r = &nodes->ranks[rank];
        if (r->first_rank != first)
            continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "rank", rank);
        add_number(item, WEFT_NODES_COMPUTE, r->value[WEFT_NODES_COMPUTE]);
        add_number(item, WEFT_NODES_MEMORY, r->value[WEFT_NODES_MEMORY]);
        cJSON_AddItemToArray(ranks, item);
        for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++) {
            if (r->links[i].peer < 0)
                continue;
            cJSON *link = cJSON_CreateObject();
            cJSON_AddNumberToObject(link, "rank", rank);
            cJSON_AddNumberToObject(link, "peer", r->links[i].peer);
            add_number(link, WEFT_NODES_LINK, r->links[i].bytes_per_s);
            add_number(link, WEFT_NODES_LATENCY, r->links[i].latency_us);
            cJSON_AddItemToArray(links, link);
        }
    }
}

static cJSON *odd_json(const weft_nodes *nodes, const weft_nodes_odd *odd)
{
    cJSON *item = cJSON_CreateObject();
    const weft_nodes_rank *rank = &nodes->ranks[odd->rank];
    cJSON_AddStringToObject(item, "what",
                            odd->value > 0 ? weft_nodes_kind_text(odd->kind) : "disk");
    cJSON_AddStringToObject(item, "node", rank->node);
    if (!odd->is_node)
        cJSON_AddNumberToObject(item, "rank", odd->rank);
    if (odd->peer >= 0) {
        cJSON_AddNumberToObject(item, "peer", odd->peer);
        cJSON_AddStringToObject(item, "peer_node", nodes->ranks[odd->peer].node);
    }
    if (odd->value > 0) {
        cJSON_AddNumberToObject(item, "value", odd->value);
        cJSON_AddNumberToObject(item, "median", odd->median);
        cJSON_AddNumberToObject(item, "factor", odd->factor);
    } else {
        cJSON_AddStringToObject(item, "fault", rank->fault);
    }
    return item;
}

void weft_nodes_print_json(const weft_nodes *nodes, const weft_nodes_options *options, FILE *out)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "weft", WEFT_VERSION);
    cJSON_AddBoolToObject(root, "even", nodes->num_odd == 0);
    cJSON_AddNumberToObject(root, "factor", options->factor);
    cJSON *list = cJSON_AddArrayToObject(root, "nodes"), *odd = cJSON_AddArrayToObject(root, "odd");
    for (int rank = 0; rank < nodes->num_ranks; rank++) {
        const weft_nodes_rank *lead = &nodes->ranks[rank];
        if (lead->first_rank != rank)
            continue;
        cJSON *node = cJSON_CreateObject();
        cJSON_AddStringToObject(node, "node", lead->node);
        add_ranks(nodes, rank, node);
        cJSON *disk = cJSON_AddObjectToObject(node, "disk");
        add_number(disk, WEFT_NODES_WRITE, lead->value[WEFT_NODES_WRITE]);
        add_number(disk, WEFT_NODES_READ, lead->value[WEFT_NODES_READ]);
        if (*lead->fault)
            cJSON_AddStringToObject(disk, "fault", lead->fault);
        cJSON_AddItemToArray(list, node);
    }
    for (int i = 0; i < nodes->num_odd; i++)
        cJSON_AddItemToArray(odd, odd_json(nodes, &nodes->odd[i]));
    char *text = cJSON_Print(root);
    fprintf(out, "%s\n", text ? text : "{}");
    cJSON_free(text);
    cJSON_Delete(root);
}
