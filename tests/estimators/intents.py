"""Sentences to a help desk by what they want, twelve each; the last four are held out."""

SENTENCES = {
    "refund": [
        "I want my money back for this order",
        "please refund the blue jacket I returned",
        "how long does a refund take to arrive on my card",
        "you charged me twice, refund the second payment",
        "the refund you promised has not arrived",
        "can I get my money back without a receipt",
        "refund my last purchase please",
        "give me back the money for the broken lamp",
        "when will you refund my payment",
        "I would like my money back",
        "please send the refund to my card",
        "the order was wrong and I want a refund",
    ],
    "delivery": [
        "where is my parcel",
        "my package has not been delivered yet",
        "can you track the shipment of my order",
        "the courier left the parcel at the wrong house",
        "when will my package arrive",
        "the delivery is three days late",
        "please change the delivery address of my parcel",
        "how much does shipping to France cost",
        "my parcel is late, where is it",
        "track my package please",
        "has the shipment left the warehouse",
        "the courier never came with my delivery",
    ],
    "password": [
        "I forgot my password",
        "how do I reset my password",
        "I cannot log in to my account",
        "the login page says my password is wrong",
        "my account is locked after too many login attempts",
        "send me a link to reset the password",
        "the code to sign in never comes",
        "please unlock my account so that I can sign in",
        "my password does not work",
        "reset my login please",
        "I am locked out of my account",
        "the link to reset my password has expired",
    ],
    "hours": [
        "what time do you open",
        "are you open on Sunday",
        "when does the shop close today",
        "what are your opening hours",
        "is the store open on public holidays",
        "until what time are you open in the evening",
        "do you close for lunch",
        "at what hour does the shop open on Monday",
        "is the shop open today",
        "what time does the store close",
        "tell me your opening hours on Saturday",
        "are you open in the evening",
    ],
    "cancel": [
        "cancel my subscription",
        "I want to stop the monthly plan",
        "how do I end my membership",
        "please cancel the renewal of my plan",
        "I no longer need the subscription, end it",
        "stop my membership at the end of the month",
        "do not renew my subscription next year",
        "cancel the premium plan today",
        "please end my subscription",
        "I want to cancel my membership",
        "stop the renewal of the monthly subscription",
        "how can I cancel the plan",
    ],
    "invoice": [
        "I need an invoice for my company",
        "please send the invoice for March as a PDF",
        "the VAT number on my invoice is missing",
        "where can I download my invoices",
        "the invoice has the wrong company name",
        "can you put our tax number on the invoice",
        "send a copy of the bill to our accounting department",
        "I did not get an invoice by email",
        "download the invoice for April",
        "the company address on the bill is wrong",
        "please email me a copy of my invoice",
        "our accounting needs the invoice with VAT",
    ],
}
LEARNED = 8


def learned(intent):
    """(8,) sentences to learn."""
    return SENTENCES[intent][:LEARNED]


def held_out(intents=tuple(SENTENCES)):
    """Sentences that nobody learns, and what they want."""
    sentences = [text for intent in intents for text in SENTENCES[intent][LEARNED:]]
    return sentences, [intent for intent in intents for _ in SENTENCES[intent][LEARNED:]]
